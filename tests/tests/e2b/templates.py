"""Templates built by the unmodified Python SDK, against a server of ours. Prints one line for each check; fails at the first.
KIND: `sync` or `async`."""
import asyncio
import importlib
import inspect
import os
import tempfile
import time

import e2b
from e2b.api.client_async import get_api_client as async_client
from e2b.api.client_sync import get_api_client as sync_client
from e2b.connection_config import ConnectionConfig
from e2b import AsyncSandbox, AsyncTemplate, Sandbox, Template, wait_for_file, wait_for_port

from last import last

IS_ASYNC = os.environ.get("KIND") == "async"
T, S = (AsyncTemplate, AsyncSandbox) if IS_ASYNC else (Template, Sandbox)


def check(name, good):
    assert good, name
    print(name, flush=True)


async def got(value):
    return await value if inspect.isawaitable(value) else value


async def fails(call, kind=Exception):
    try:
        await got(call())
    except kind as error:
        return str(error)
    raise AssertionError("it did not fail")


def routes(family, name):
    """A route of the client's generated half; None: this version has none of it."""
    try:
        return importlib.import_module(f"e2b.api.client.api.{family}.{name}")
    except ImportError:
        return None


async def asked(family, name, *of, **more):
    """Status, headers and parsed answer of a generated route; None where this version has none of it."""
    module = routes(family, name)
    if module is None:
        return None
    client = (async_client if IS_ASYNC else sync_client)(ConnectionConfig())
    call = module.asyncio_detailed if IS_ASYNC else module.sync_detailed
    answer = await got(call(*of, client=client, **more))
    return int(answer.status_code), answer.headers, answer.parsed


async def listings(template_id, first, second):
    """What the client's generated half asks of templates and builds, which its user has no other method for."""
    status, headers, page = await asked("templates", "get_templates_template_id", template_id, limit=1)
    check("a template with its builds", status == 200 and [str(b.build_id) for b in page.builds] == [second])
    build = page.builds[0]
    # What older versions ask for by default is more.
    check("a build of it", (build.status.value, build.cpu_count) == ("ready", 2) and build.memory_mb in (512, 1024))
    check("is over", build.finished_at >= build.created_at)
    check("all of them are counted", getattr(page, "build_count", 2) == 2)
    check("its sandboxes are counted", page.spawn_count == 2 and page.last_spawned_at is not None)
    status, headers, page = await asked("templates", "get_templates_template_id", template_id, limit=1,
                                        next_token=headers["x-next-token"])
    check("the next page", [(str(b.build_id), b.memory_mb) for b in page.builds] == [(first, 640)])
    check("is the last", "x-next-token" not in headers)
    status, _, page = await asked("templates", "get_templates_template_id", "base")
    check("one of the host", status == 200 and page.template_id == "base" and page.builds == [])
    check("an unknown one", (await asked("templates", "get_templates_template_id", "nothing"))[0] == 404)
    status, _, all_ = await asked("templates", "get_templates")
    check("all", {"base", template_id} < {one.template_id for one in all_})
    level = importlib.import_module("e2b.api.client.models.log_level").LogLevel
    logs = await asked("templates", "get_templates_template_id_builds_build_id_logs", template_id, first)
    check("the log of a build", any(entry.message == "said" for entry in logs[2].logs))
    direction = importlib.import_module("e2b.api.client.models.logs_direction").LogsDirection
    logs = await asked("templates", "get_templates_template_id_builds_build_id_logs", template_id, first,
                       level=level.WARN, direction=direction.BACKWARD, limit=100)
    check("from a level on", [entry.message for entry in logs[2].logs] == ["warned"])
    status = await asked("templates", "get_templates_template_id_builds_build_id_status", template_id, first, level=level.WARN)
    check("a status with such entries", [entry.message for entry in status[2].log_entries] == ["warned"])
    update = importlib.import_module("e2b.api.client.models.template_update_request").TemplateUpdateRequest
    for name in ["patch_v_2_templates_template_id", "patch_templates_template_id"]:
        check("it stays its tenant's", (await asked("templates", name, template_id, body=update(public=False)))[0] == 200)
        check("and is not published", (await asked("templates", name, template_id, body=update(public=True)))[0] == 400)
    old = await asked("templates", "post_templates_template_id_builds_build_id", template_id, first)
    check("an older build is refused", old is None or old[0] == 400)
    found = await asked("templates", "get_v2_templates", limit=1)
    if found:
        names, token = [], None
        while True:
            more = {"next_token": token} if token else {}
            status, headers, page = await asked("templates", "get_v2_templates", limit=1, **more)
            names += [one.names[0] for one in page]
            token = headers.get("x-next-token")
            if not token:
                break
        check("all by the page", names == ["base", "again", "web"])
    found = await asked("templates", "get_default_templates")
    if found:
        check("the host's", [(one.template_id, one.is_default) for one in found[2]] == [("base", True)])
    found = await asked("tags", "get_templates_template_id_tags_count", template_id)
    if found:
        check("tags are counted", found[2].total == 3)
        found = await asked("tags", "get_templates_template_id_tags_exists", template_id, tag="V2")
        check("a tag exists", found[2].exists and found[2].normalized_tag == "v2")
        found = await asked("tags", "get_templates_template_id_tags_exists", template_id, tag="v3")
        check("or not", not found[2].exists)
        found = await asked("tags", "get_templates_template_id_tags_tag_assignments", template_id, "v2")
        check("assignments", [str(one.build_id) for one in found[2].data] == [second] and found[2].next_cursor is None)
        status, _, page = await asked("tags", "get_templates_template_id_tags_groups", template_id, tags_limit=2)
        status, _, rest = await asked("tags", "get_templates_template_id_tags_groups", template_id, tags_limit=2,
                                      tags_cursor=page.next_cursor)
        check("groups of tags", {one.tag for one in page.tags + rest.tags} == {"default", "v2", "latest-good"})
        check("and their builds", {str(one.assignments[0].build_id) for one in page.tags + rest.tags} == {first, second})
        check("no further page", rest.next_cursor is None)


async def main():
    place = tempfile.mkdtemp()
    os.makedirs(f"{place}/app/deep")
    for path, text in {"app/main.py": "print('main')", "app/deep/a.txt": "deep", "one.txt": "one", "two.txt": "two"}.items():
        with open(f"{place}/{path}", "w") as file:
            file.write(text)
    os.symlink("main.py", f"{place}/app/link.py")
    os.chmod(f"{place}/one.txt", 0o600)

    template = (
        T(file_context_path=place)
        .from_base_image()
        .set_envs({"GREETING": "hi there", "BOTH": "$GREETING!"})
        .run_cmd("echo said; echo warned >&2; id -un > who; pwd > where; echo \"$BOTH\" > envs")
        .set_workdir("/opt/app")
        .copy("app", ".", user="root")
        .copy("*.txt", "texts/", mode=0o640)
        .copy("one.txt", "/opt/renamed")
        .run_cmd("id -u > /root/uid", user="root")
        .run_cmd("pwd > /tmp/where")
        .set_start_cmd("echo $GREETING > /tmp/greeting; exec python3 -m http.server 8123 --bind 127.0.0.1",
                       wait_for_file("/tmp/greeting"))
    )
    logs = []
    built = await got(T.build(template, "web", cpu_count=1, memory_mb=640, on_build_logs=lambda entry: logs.append(entry)))
    said = [entry.message for entry in logs]
    check("build", len(built.template_id) == 20 and built.name == "web")
    check("logs", "said" in said and "warned" in said and any("COPY app" in line for line in said))
    check("values of variables are not logged", not any("hi there" in line for line in said))
    check("uploaded", any("Uploaded" in line for line in said))
    check("exists", await got(T.exists("web")) and await got(T.exists("web:any")) and not await got(T.exists("none")))

    sandbox = await got(S.create("web", timeout=60))
    run = lambda text, **more: got(sandbox.commands.run(text, **more))
    check("created", (await run("pwd")).stdout == "/opt/app\n")
    check("run", (await run("cat ~/who ~/where ~/envs")).stdout == "user\n/home/user\nhi there!\n")
    check("run as root", (await run("cat /root/uid", user="root")).stdout == "0\n")
    check("workdir", (await run("cat /tmp/where; stat -c %U .")).stdout == "/opt/app\nuser\n")
    found = (await run("find . -not -path . -printf '%P %y %U %m\\n' | sort")).stdout
    check("copy", "main.py f 0" in found and "deep/a.txt f 0" in found and "link.py l 0" in found)
    check("copy of several, with a mode", "texts/one.txt f 1000 640" in found and "texts/two.txt f 1000 640" in found)
    check("copy under a new name", (await run("cat /opt/renamed; stat -c %a /opt/renamed")).stdout == "one600\n")
    check("variables are for the build", (await run("echo [$GREETING]")).stdout == "[]\n")
    check("the program saw them", (await run("cat /tmp/greeting")).stdout == "hi there\n")
    check("the program runs", "main.py" in (await run("curl -s --retry 9 --retry-connrefused --retry-delay 1 http://127.0.0.1:8123/")).stdout)
    info = await got(sandbox.get_info())
    check("what it has", (info.memory_mb, info.cpu_count, info.template_id) == (640, 1, built.template_id))
    # As every sandbox: paused and resumed, it is what it was.
    await got((sandbox.pause if hasattr(sandbox, "pause") else sandbox.beta_pause)())
    sandbox = await got(S.connect(sandbox.sandbox_id, timeout=60))
    check("resumed", (await run("pwd; cat texts/two.txt")).stdout == "/opt/app\ntwo")
    await got(sandbox.kill())

    # What was sent is there, and tags name builds.
    logs = []
    again = T(file_context_path=place).from_base_image().copy("*.txt", "texts/").set_user("root").set_workdir("/srv")
    next_ = await got(T.build(again, "web:v2", tags=["stable"], on_build_logs=lambda entry: logs.append(entry.message)))
    check("not sent again", next_.template_id == built.template_id and any("already cached" in line for line in logs))
    sandbox = await got(S.create("web:v2", timeout=60))
    check("a tag's own build", (await run("id -un; pwd; ls /home/user/texts")).stdout == "root\n/srv\none.txt\ntwo.txt\n")
    await got(sandbox.kill())
    check("an unknown tag", "does not exist" in await fails(lambda: S.create("web:none")))
    if hasattr(T, "get_tags"):
        tags = await got(T.get_tags("web"))
        check("tags", {tag.tag for tag in tags} == {"default", "v2", "stable"})
        given = await got(T.assign_tags("web:v2", ["latest-good"]))
        check("assigned", given.build_id == next_.build_id and given.tags == ["latest-good"])
        await got(T.remove_tags("web", ["stable"]))
        check("removed", {tag.tag for tag in await got(T.get_tags("web"))} == {"default", "v2", "latest-good"})

    # The same steps once more; and steps that are to run whatever ran before.
    async def cached(template, name="again", **more):
        lines = []
        await got(T.build(template, name, on_build_logs=lambda entry: lines.append(entry.message), **more))
        return [line for line in lines if line.startswith("CACHED ")]
    def twice(skips=False):
        template = T(file_context_path=place).from_base_image().run_cmd("echo once > ~/once").copy("*.txt", "texts/")
        return (template.skip_cache() if skips else template).run_cmd("cat texts/one.txt > ~/twice")
    check("it runs once", await cached(twice()) == [])
    lines = ["CACHED RUN echo once > ~/once", "CACHED COPY *.txt texts/", "CACHED RUN cat texts/one.txt > ~/twice"]
    check("and is cached then", await cached(twice()) == lines)
    # What was quick is worth no layer of its own, so that all of it runs again.
    check("but for what is to run", await cached(twice(skips=True)) == [])
    check("as all of it is", await cached(twice(), skip_cache=True) == [])
    sandbox = await got(S.create("again", timeout=60))
    check("with its files", (await got(sandbox.commands.run("cat ~/once ~/twice"))).stdout == "once\none")
    await got(sandbox.kill())

    if hasattr(T, "get_tags"):
        await listings(built.template_id, built.build_id, next_.build_id)

    # On top of another template, in the background.
    child = T().from_template("web").run_cmd("cat /opt/renamed > ~/copy; echo $GREETING > ~/inherited")
    started = await got(T.build_in_background(child, "child"))
    until = time.time() + 60
    while time.time() < until:
        status = await got(T.get_build_status(started))
        if status.status.value in ("ready", "error"):
            break
        time.sleep(0.2)
    check("built in the background", status.status.value == "ready")
    sandbox = await got(S.create("child", timeout=60))
    check("on another template", (await run("cat ~/copy ~/inherited; pwd")).stdout == "onehi there\n/opt/app\n")
    check("with its program", "main.py" in (await run("curl -s --retry 9 --retry-connrefused --retry-delay 1 http://127.0.0.1:8123/")).stdout)
    await got(sandbox.kill())

    # What fails says at which step, and why.
    logs = []
    bad = T().from_base_image().run_cmd("true").run_cmd("echo no luck; exit 7")
    why = await fails(lambda: T.build(bad, "bad", on_build_logs=lambda entry: logs.append(entry.message)), e2b.BuildException)
    check("a step fails", "exit status 7" in why and "no luck" in logs)
    check("no such build", "does not exist" in await fails(lambda: S.create("bad")))
    unready = T().from_base_image().set_start_cmd("echo oh no >&2; exit 4", wait_for_port(1))
    why = await fails(lambda: T.build(unready, "unready"), e2b.BuildException)
    check("a program fails", "oh no" in why)
    why = await fails(lambda: T.build(T().from_image("python:9"), "image"), e2b.BuildException)
    check("an unknown image", "python:9" in why and "image import" in why)
    why = await fails(lambda: T.build(T().from_template("nothing"), "nothing-more"), e2b.BuildException)
    check("an unknown template", "nothing" in why)
    why = await fails(lambda: T.build(T().from_base_image().set_user("daemon"), "daemon"), e2b.BuildException)
    check("an unknown user", "step 1 (USER)" in why)
    check("the host's name", "host" in await fails(lambda: T.build(T().from_base_image(), "base"), e2b.BuildException))


asyncio.run(main())
last()
