"""The unmodified Python SDK, synchronous, against a server of ours. Prints one line for each check; fails at the first.
SANDBOX_CLASS: the isolation class of its sandboxes."""
import functools
import os
import threading
import time
import urllib.request

from e2b import (
    CommandExitException, FileNotFoundException, InvalidArgumentException, NotFoundException, Sandbox,
    SandboxException, SandboxQuery, SandboxState, TimeoutException,
)

from last import last


def check(name, good):
    assert good, name
    print(name, flush=True)


CLASS = os.environ.get("SANDBOX_CLASS")
create = functools.partial(Sandbox.create, **({"headers": {"X-Cofferdam-Class": CLASS}} if CLASS else {}))
# Whether processes go on after a pause.
has_memory = os.environ.get("SANDBOX_MEMORY") == "1"

started = time.time()
sandbox = create(timeout=120, metadata={"job": "a b&c=d", "who": "sync"}, envs={"GREETING": "hi there"})
check("create", sandbox.is_running() and len(sandbox.sandbox_id) == 20)

# Commands.
done = sandbox.commands.run("echo out; echo err >&2")
check("run", (done.exit_code, done.stdout, done.stderr) == (0, "out\n", "err\n"))
check("envs", sandbox.commands.run("echo $GREETING $MORE", envs={"MORE": "x"}).stdout == "hi there x\n")
check("cwd", sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n")
check("user", sandbox.commands.run("id -un; pwd").stdout == "user\n/home/user\n")
check("root", sandbox.commands.run("id -u", user="root").stdout == "0\n")
try:
    sandbox.commands.run("exit 3")
    check("exit code", False)
except CommandExitException as error:
    check("exit code", error.exit_code == 3)
try:
    sandbox.commands.run("true", cwd="/nowhere")
    check("missing cwd", False)
except InvalidArgumentException as error:
    check("missing cwd", "cwd '/nowhere' does not exist" in str(error))
try:
    sandbox.commands.run("sleep 30", timeout=1)
    check("timeout", False)
except Exception as error:
    # Older clients may give up reading first, which they do not name as theirs.
    check("timeout", isinstance(error, TimeoutException) or type(error).__name__ == "ReadTimeout")
until = time.time() + 10
while time.time() < until and sandbox.commands.run("pgrep -x sleep || echo none").stdout != "none\n":
    time.sleep(0.1)
check("timeout kills", sandbox.commands.run("pgrep -x sleep || echo none").stdout == "none\n")
heard = []
sandbox.commands.run("echo 1; sleep 2; echo 2", on_stdout=lambda text: heard.append((text, time.time())))
check("callbacks", "".join(text for text, _ in heard) == "1\n2\n")
check("callbacks as it comes", time.time() - heard[0][1] > 1)
large = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
check("large output", len(large.stdout) == 3000000)
server = sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True)
check("background", server.pid in [process.pid for process in sandbox.commands.list()])
check("pid", sandbox.commands.run(f"ps -o pid= -p {server.pid}").stdout.strip() == str(server.pid))
# Older clients cannot close an input.
closes = hasattr(sandbox.commands, "close_stdin")
reader = sandbox.commands.run("cat" if closes else "head -n 2", background=True, stdin=True)
sandbox.commands.send_stdin(reader.pid, "one\n")
sandbox.commands.send_stdin(reader.pid, "two\n")
if closes:
    sandbox.commands.close_stdin(reader.pid)
check("stdin", reader.wait().stdout == "one\ntwo\n")
sleeper = sandbox.commands.run("sleep 100", background=True)
again = sandbox.commands.connect(sleeper.pid)
check("kill", sandbox.commands.kill(sleeper.pid) and not sandbox.commands.kill(999999))
try:
    again.wait()
    check("killed", False)
except CommandExitException as error:
    check("killed", error.exit_code == -1 and "signal: killed" in str(error.error))
sandbox.commands.run("nohup sleep 77 > /dev/null 2>&1 &")
check("children live on", sandbox.commands.run("pgrep -f 'sleep 77'").stdout.strip() != "")

# A terminal.
shown = []
terminal = sandbox.pty.create(size=__import__("e2b").PtySize(rows=30, cols=100))
sandbox.pty.resize(terminal.pid, __import__("e2b").PtySize(rows=20, cols=90))
sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
try:
    terminal.wait(on_pty=lambda data: shown.append(data))
except CommandExitException:
    pass
check("pty", b"20 90" in b"".join(shown))

# Files.
files = sandbox.files
info = files.write("notes/a.txt", "hello")
check("write", info.path == "/home/user/notes/a.txt")
check("read", files.read("notes/a.txt") == "hello")
check("owner", sandbox.commands.run("find notes -printf '%u:%g\\n'").stdout == "user:user\nuser:user\n")
bytes_ = bytes(range(256)) * 4096
files.write("/tmp/bin", bytes_)
check("bytes", files.read("/tmp/bin", format="bytes") == bytearray(bytes_))
check("stream", b"".join(files.read("/tmp/bin", format="stream")) == bytes_)
packs = "gzip" in files.write.__annotations__
files.write("/tmp/gz", bytes_, **({"gzip": True} if packs else {}))
check("gzip", files.read("/tmp/gz", format="bytes") == bytearray(bytes_))
import io
files.write("/tmp/octets", io.BytesIO(bytes_))
check("octet-stream", files.read("/tmp/octets", format="bytes") == bytearray(bytes_))
files.write_files([{"path": "/tmp/m1", "data": "1"}, {"path": "/tmp/m2", "data": "2"}])
check("several", files.read("/tmp/m1") + files.read("/tmp/m2") == "12")
check("exists", files.exists("notes/a.txt") and not files.exists("notes/b.txt"))
check("a link is followed", files.exists("/bin/sh"))
check("list", [entry.name for entry in files.list("notes")] == ["a.txt"])
check("make_dir", files.make_dir("deep/er") and not files.make_dir("deep/er"))
moved = files.rename("notes/a.txt", "deep/er/still/b.txt")
check("rename", moved.path == "/home/user/deep/er/still/b.txt" and files.read(moved.path) == "hello")
found = files.get_info(moved.path)
check("info", (found.size, found.owner, found.permissions) == (5, "user", "-rw-r--r--"))
check("depth", len(files.list("/home/user/deep", depth=3)) == 3)
files.remove("deep")
files.remove("deep")
check("remove", not files.exists("deep"))
for wrong in (lambda: files.read("/none"), lambda: files.list("/none")):
    try:
        wrong()
        check("missing file", False)
    except (FileNotFoundException, NotFoundException):
        check("missing file", True)
watcher = files.watch_dir("/tmp")
files.write("/tmp/seen", "x")
events, until = [], time.time() + 10
while time.time() < until and len(events) < 2:
    events += [(event.name, event.type.value) for event in watcher.get_new_events()]
    time.sleep(0.05)
watcher.stop()
check("watch", ("seen", "create") in events and ("seen", "write") in events)
link = sandbox.download_url("/tmp/m1")
check("signed download", urllib.request.urlopen(link).read() == b"1")
try:
    urllib.request.urlopen(sandbox.download_url("/tmp/m1")[:-2])
    check("forged signature", False)
except urllib.error.HTTPError as error:
    check("forged signature", error.code == 401)

# A signature is for one user.
sandbox.commands.run("echo roots > /root/mine", user="root")
files.write("mine", "users\n")
request = urllib.request.Request(sandbox.download_url("mine"), headers={"Authorization": "Basic cm9vdDo="})
check("a signature chooses its user", urllib.request.urlopen(request).read() == b"users\n")
sandbox.commands.run("mkdir odd; touch -d @999999999999 odd/late; touch -d @-99999999999999 odd/early")
check("times beyond the calendar", sorted(entry.name for entry in files.list("odd")) == ["early", "late"])

# A service inside, on loopback, by its name.
host = sandbox.get_host(8000)
check("get_host", host.startswith(f"8000-{sandbox.sandbox_id}.localhost:"))
port = host.rsplit(":", 1)[1]
request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host})
check("service", b"Directory listing" in urllib.request.urlopen(request).read())
request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host.replace("8000-", "8001-")})
try:
    urllib.request.urlopen(request)
    check("closed port", False)
except urllib.error.HTTPError as error:
    check("closed port", error.code == 502 and b"The sandbox is running but port is not open" in error.read())

# Its life.
same = Sandbox.connect(sandbox.sandbox_id)
check("connect", same.commands.run("echo same").stdout == "same\n")
mine = Sandbox.list(query=SandboxQuery(metadata={"job": "a b&c=d"}, state=[SandboxState.RUNNING])).next_items()
check("list by metadata", [one.sandbox_id for one in mine] == [sandbox.sandbox_id])
check("list nothing", Sandbox.list(query=SandboxQuery(metadata={"job": "other"})).next_items() == [])
others = [create(timeout=60, metadata={"page": "1"}) for _ in range(3)]
pages = Sandbox.list(query=SandboxQuery(metadata={"page": "1"}), limit=2)
first, second = pages.next_items(), pages.next_items()
check("pages", (len(first), len(second), pages.has_next) == (2, 1, False))
for other in others:
    other.kill()
before = sandbox.get_info()
check("info of a sandbox", before.metadata["who"] == "sync" and before.template_id == "base")
sandbox.set_timeout(1000)
after = sandbox.get_info()
check("set_timeout", (after.end_at - before.end_at).total_seconds() > 600)
metrics = sandbox.get_metrics()
check("metrics", len(metrics) == 1 and metrics[0].mem_total == 512 * 1024 * 1024)

# Paused, resumed, kept and forked.
files.write("kept/a.txt", "kept")
sandbox.commands.run("ln -s a.txt kept/link; chmod 700 kept; rm -rf deep; touch -d @1000000 kept/a.txt")
sandbox.commands.run("rm -rf /etc/skel; chown 7:8 /home/user/kept/link -h", user="root")
sandbox.commands.run("nohup sleep 88 > /dev/null 2>&1 &")
command = sandbox.commands.run("sleep 99", background=True)
id = sandbox.sandbox_id
sandbox.pause()
try:
    command.wait()
    check("a command ends with a pause", False)
except Exception:
    check("a command ends with a pause", True)
check("paused", not sandbox.is_running() and Sandbox.get_info(id).state == SandboxState.PAUSED)
paused = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
check("list paused", [one.sandbox_id for one in paused] == [id])
running = Sandbox.list(query=SandboxQuery(state=[SandboxState.RUNNING])).next_items()
check("list running", id not in [one.sandbox_id for one in running])
sandbox.pause()
check("paused twice", Sandbox.get_info(id).state == SandboxState.PAUSED)
sandbox = Sandbox.connect(id, timeout=300)
check("resumed", sandbox.sandbox_id == id and sandbox.files.read("kept/a.txt") == "kept")
told = sandbox.commands.run("find kept -printf '%m %U:%G %Ts %f %l\\n' | sort").stdout.splitlines()
check("modes, owners and links", [line.split()[:2] + line.split()[3:] for line in told] == [
    ["644", "1000:1000", "a.txt"], ["700", "1000:1000", "kept"], ["777", "7:8", "link", "a.txt"]])
check("times", told[0].split()[2] == "1000000")
check("what was removed stays so", sandbox.commands.run("find deep /etc/skel 2>/dev/null || echo none").stdout == "none\n")
check("envs", sandbox.commands.run("echo $GREETING").stdout == "hi there\n")
left = sandbox.commands.run("pgrep -x sleep || echo none").stdout
if has_memory:
    these = sandbox.commands.run("pgrep -fx 'sleep (88|99)'").stdout
    check("processes go on", len(these.splitlines()) == 2 and command.pid in [one.pid for one in sandbox.commands.list()])
    check("and can be killed", sandbox.commands.kill(command.pid))
else:
    check("processes are gone", left == "none\n")
files = sandbox.files
if hasattr(sandbox, "create_snapshot"):
    kept = sandbox.create_snapshot()
    files.write("kept/a.txt", "changed")
    again = create(kept.snapshot_id, timeout=60)
    check("from a snapshot", again.files.read("kept/a.txt") == "kept" and files.read("kept/a.txt") == "changed")
    listed = sandbox.list_snapshots().next_items()
    check("list snapshots", [one.snapshot_id for one in listed] == [kept.snapshot_id])
    check("delete", Sandbox.delete_snapshot(kept.snapshot_id) and not Sandbox.delete_snapshot(kept.snapshot_id))
    check("what was made lives on", again.files.read("kept/a.txt") == "kept" and again.kill())
if hasattr(sandbox, "fork"):
    forks = sandbox.fork(count=2, timeout=60)
    check("fork", [one.files.read("kept/a.txt") for one in forks] == ["changed"] * 2)
    check("each has a life of its own", len({one.sandbox_id for one in [sandbox, *forks]}) == 3)
    forks[0].files.write("kept/a.txt", "other")
    check("and files of its own", forks[1].files.read("kept/a.txt") == files.read("kept/a.txt") == "changed")
    check("kill forks", all(one.kill() for one in forks))
# Long enough to be written to on a busy machine.
ends = create(timeout=8, lifecycle={"on_timeout": "pause"})
ends.files.write("kept", "x")
until = time.time() + 60
while time.time() < until and Sandbox.get_info(ends.sandbox_id).state != SandboxState.PAUSED:
    time.sleep(0.1)
check("paused by its time", Sandbox.get_info(ends.sandbox_id).state == SandboxState.PAUSED)
ends = Sandbox.connect(ends.sandbox_id, timeout=60)
check("and resumed", ends.files.read("kept") == "x")
ends.pause()
check("kill of a paused one", Sandbox.kill(ends.sandbox_id) and not Sandbox.kill(ends.sandbox_id))
woken = create(timeout=8, lifecycle={"on_timeout": "pause", "auto_resume": True})
woken.files.write("kept", "y")
until = time.time() + 60
while time.time() < until and Sandbox.get_info(woken.sandbox_id).state != SandboxState.PAUSED:
    time.sleep(0.1)
check("asked whether it runs, it stays paused", not woken.is_running())
check("a command resumes it", woken.commands.run("cat kept").stdout == "y")
left = Sandbox.get_info(woken.sandbox_id)
check("for five minutes at least", (left.end_at - left.started_at).total_seconds() > 290)
woken.pause()
check("and so does a file", woken.files.read("kept") == "y" and woken.kill())
brief = create(timeout=2)
until = time.time() + 15
while time.time() < until and brief.is_running():
    time.sleep(0.1)
check("expiry", not brief.is_running())
# It is wiped in this very moment; a kill meanwhile is one.
until = time.time() + 15
while time.time() < until and Sandbox.kill(brief.sandbox_id):
    time.sleep(0.1)
check("kill of an expired one", not Sandbox.kill(brief.sandbox_id))
made, failed = [], []


def make():
    try:
        made.append(create(timeout=60))
    except Exception as error:
        failed.append(error)


threads = [threading.Thread(target=make) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
check("four at once", len(made) == 4 and not failed)
check("kill all", all(one.kill() for one in made))
check("kill the sandbox", sandbox.kill() and not sandbox.kill() and not sandbox.is_running())
last()
