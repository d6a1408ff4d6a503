"""openai-agents: sessions of its sandbox client for E2B: files and commands, a terminal, a port, pause and resume, both ways of
keeping a workspace, and an agent whose model is a list of answers."""
import asyncio
import io
import json
import pathlib

from agents import Model, ModelResponse, RunConfig, Runner, Usage
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.run_config import SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest
from agents.sandbox.sandbox_agent import SandboxAgent
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from checks import check, done, fetched

CLIENT = E2BSandboxClient()


def options(**more):
    return E2BSandboxClientOptions(sandbox_type="e2b", timeout=240, **more)


async def said(session, *command, **more):
    result = await session.exec(*command, **more)
    return result.exit_code, result.stdout.decode(), result.stderr.decode()


async def read(session, path):
    return (await session.read(pathlib.Path(path))).read()


async def work():
    manifest = Manifest(root="/home/user/work", entries={"given.txt": File(content=b"given\n")})
    session = await CLIENT.create(manifest=manifest, options=options(envs={"GREETING": "hi there"}, exposed_ports=(8000,)))
    async with session:
        check("it runs", await session.running())
        check("the manifest's file", await read(session, "given.txt") == b"given\n")
        found = await said(session, 'pwd; echo "$GREETING"; echo e >&2; exit 3')
        check("a command", found == (3, "/home/user/work\nhi there\n", "e\n"), found)
        check("as root", (await said(session, "id -un", user="root"))[1] == "root\n")
        await session.write(pathlib.Path("deep/raw"), io.BytesIO(bytes(range(256)) * 100))
        check("a file", await read(session, "deep/raw") == bytes(range(256)) * 100)
        await session.mkdir("made/deeper", parents=True)
        names = sorted(pathlib.PurePath(one.path).name for one in await session.ls("."))
        check("a list", names == ["deep", "given.txt", "made"], names)
        await session.rm("made", recursive=True)
        check("it is gone", (await said(session, "test", "-e", "made", shell=False))[0] == 1)
        await terminal(session)
        began = await session.pty_exec_start("python3 -m http.server 8000", yield_time_s=0.5)
        check("a server runs on", began.exit_code is None and began.process_id is not None, began)
        end = await session.resolve_exposed_port(8000)
        found = await asyncio.to_thread(fetched, f"{end.host}:{end.port}", "/given.txt")
        check("a port", found == "given\n", found)
    check("it is over", not await session.running())


async def terminal(session):
    began = await session.pty_exec_start("read -p 'name? ' name; echo hello $name; tty", tty=True, yield_time_s=2)
    check("a terminal asks", b"name? " in began.output and began.process_id is not None, began)
    more = await session.pty_write_stdin(session_id=began.process_id, chars="ann\n", yield_time_s=2)
    check("and answers", b"hello ann" in more.output and b"/dev/pts/" in more.output, more)


async def paused():
    """A session that is paused at its end, and goes on from its state, which is only JSON."""
    manifest = Manifest(root="/home/user/work")
    session = await CLIENT.create(manifest=manifest, options=options(pause_on_exit=True))
    async with session:
        await session.write(pathlib.Path("kept.txt"), io.BytesIO(b"kept\n"))
        id = session.state.sandbox_id
    state = CLIENT.deserialize_session_state(CLIENT.serialize_session_state(session.state))
    session = await CLIENT.resume(state)
    state.pause_on_exit = False
    async with session:
        check("it goes on as itself", session.state.sandbox_id == id, session.state.sandbox_id)
        check("with its files", await read(session, "kept.txt") == b"kept\n")
        check("and commands", (await said(session, "echo $((6 * 7))"))[1] == "42\n")


async def persisted(how):
    """A workspace that is taken out of one sandbox and put into another."""
    manifest = Manifest(root="/home/user/work")
    first = await CLIENT.create(manifest=manifest, options=options(workspace_persistence=how))
    async with first:
        await said(first, "mkdir -p a/b && echo x > a/b/c && ln -s b/c a/link")
        kept = await first.persist_workspace()
    second = await CLIENT.create(manifest=manifest, options=options(workspace_persistence=how))
    async with second:
        await second.hydrate_workspace(kept)
        found = await said(second, "cat a/link")
        check(f"a workspace by {how}", found == (0, "x\n", ""), found)


class Scripted(Model):
    """A model that says one thing after the other, and keeps what it was told."""

    def __init__(self, answers):
        self.answers, self.told = list(answers), []

    async def get_response(self, system_instructions, input, *_, **__):
        self.told.append(input)
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


async def agent():
    args = json.dumps({"cmd": "echo $((6 * 7)) > answer; cat answer"})
    text = ResponseOutputText(type="output_text", text="It is 42.", annotations=[])
    model = Scripted(
        [
            ResponseFunctionToolCall(type="function_call", call_id="1", name="exec_command", arguments=args),
            ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text]),
        ]
    )
    worker = SandboxAgent(name="worker", model=model, default_manifest=Manifest(root="/home/user/work"), capabilities=[Shell()])
    config = RunConfig(sandbox=SandboxRunConfig(client=CLIENT, options=options()), tracing_disabled=True)
    said = await Runner.run(worker, "6 * 7, by a command", run_config=config)
    outputs = [one["output"] for one in model.told[-1] if one.get("type") == "function_call_output"]
    check("an agent's command", len(outputs) == 1 and "42" in outputs[0], outputs)
    check("an agent's answer", said.final_output == "It is 42.", said.final_output)


async def main():
    await work()
    await agent()
    await paused()
    await persisted("tar")
    await persisted("snapshot")


asyncio.run(main())
done()
