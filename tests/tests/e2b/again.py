"""What E2B's own tests and users expect of the unmodified Python SDK: one object over a pause, the order of a list, the words
of what ended. Prints one line for each check; fails at the first."""
import json
import time
import urllib.error
import urllib.request

from e2b import FilesystemEventType, FileType, Sandbox, SandboxException

from last import last


def check(name, good, said=""):
    assert good, (name, said)
    print(name, flush=True)


sandbox = Sandbox.create(timeout=120)
run = sandbox.commands.run
sandbox.files.write("kept.txt", "kept")
link = sandbox.download_url("kept.txt", use_signature_expiration=600)
short = sandbox.download_url("kept.txt", use_signature_expiration=1)

# One object goes on, and so does what it gave away.
sandbox.pause()
sandbox.connect(timeout=120)
check("the same object after a pause", run("cat kept.txt").stdout == "kept")
check("the same link after a pause", urllib.request.urlopen(link).read() == b"kept")
sandbox.pause()
check("another object", Sandbox.connect(sandbox.sandbox_id).files.read("kept.txt") == "kept")
check("and the first one", sandbox.files.read("kept.txt") == "kept")

# A list, and what a link leads to.
run("mkdir -p tree/a/b tree/c; touch tree/a/1 tree/a/b/2 tree/c/3 tree/z; ln -s z tree/link; ln -s nowhere tree/dangling")
listed = [entry.path.removeprefix("/home/user/tree/") for entry in sandbox.files.list("tree", depth=3)]
check("a list by name", listed == ["a", "a/1", "a/b", "a/b/2", "c", "c/3", "dangling", "link", "z"], listed)
info = sandbox.files.get_info("tree/link")
check("a link", (info.type, info.symlink_target) == (FileType.SYMLINK, "/home/user/tree/z"), info)

# Who wrote hears of it.
watched = sandbox.files.watch_dir("tree")
for n in range(10):
    sandbox.files.write("tree/z", str(n))
    events = watched.get_new_events()
    heard = any(event.type == FilesystemEventType.WRITE and event.name == "z" for event in events)
    assert heard, (n, events)
check("changes are heard after they were made", True)
watched.stop()

# Words.
time.sleep(2.2)
try:
    urllib.request.urlopen(short)
    check("an expired link", False)
except urllib.error.HTTPError as error:
    said = json.loads(error.read())
    check("an expired link", said == {"code": 401, "message": "signature is already expired"}, said)
command = run("sleep 60", background=True)
sandbox.kill()
try:
    command.wait()
    check("killed during a command", False)
except SandboxException as error:
    check("killed during a command", "sandbox was killed or reached its end of life" in str(error), error)
last()
