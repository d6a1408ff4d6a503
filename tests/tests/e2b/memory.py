"""A pause that keeps memory, by the unmodified Python SDK. Prints one line for each check; fails at the first."""
import functools
import time
import urllib.request

from e2b import PtySize, Sandbox, SandboxException, SandboxState

create = functools.partial(Sandbox.create, headers={"X-Cofferdam-Class": "gvisor"})


def check(name, good):
    assert good, name
    print(name, flush=True)


def heard(sandbox, pid, enough, patience=20):
    """What a command says from now on, until that is enough."""
    said = []
    follower = sandbox.commands.connect(pid)
    until = time.time() + patience
    for out, err, pty in follower:
        said.append(out or err or (pty or b"").decode(errors="replace"))
        if enough("".join(said)) or time.time() > until:
            break
    follower.disconnect()
    return "".join(said)


sandbox = create(timeout=300, envs={"A": "kept"})
id = sandbox.sandbox_id
counter = sandbox.commands.run("i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done", background=True, timeout=0)
reader = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
limited = sandbox.commands.run("sleep 3; echo late", background=True, timeout=8)
server = sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True, timeout=0)
terminal = sandbox.pty.create(size=PtySize(rows=30, cols=100), timeout=0)
sandbox.pty.send_stdin(terminal.pid, b"SECRET=of-the-shell\n")
sandbox.files.write("file", "kept")
sandbox.commands.run("nohup sleep 300 > /dev/null 2>&1 &")
time.sleep(1)
before = int(heard(sandbox, counter.pid, lambda said: "\n" in said).split()[0])
since = time.time()
check("pause", sandbox.pause())
print(f"pause took {time.time() - since:.3f} s", flush=True)
check("paused", Sandbox.get_info(id).state == SandboxState.PAUSED)
for name, command in [("counter", counter), ("reader", reader)]:
    try:
        command.wait()
        check(f"who followed the {name} is told", False)
    except SandboxException:
        check(f"who followed the {name} is told", True)
time.sleep(2)
since = time.time()
sandbox = Sandbox.connect(id, timeout=300)
print(f"resume took {time.time() - since:.3f} s", flush=True)
listed = {one.pid: one for one in sandbox.commands.list()}
check("commands go on", {counter.pid, reader.pid, server.pid, terminal.pid} <= set(listed))
check("as they were known", "http.server 8000" in " ".join(listed[server.pid].args))
after = int(heard(sandbox, counter.pid, lambda said: said.count("\n") > 2).split()[0])
check("the counter did not begin anew", after > before)
check("what it does not say of itself goes on", sandbox.commands.run("pgrep -f 'sleep 300'").stdout != "")
sandbox.commands.send_stdin(reader.pid, "after\n")
follower = sandbox.commands.connect(reader.pid)
sandbox.commands.close_stdin(reader.pid)
check("input goes on", follower.wait().stdout.endswith("after\n"))
sandbox.pty.send_stdin(terminal.pid, b"echo =$SECRET=\n")
check("a terminal goes on", "=of-the-shell=" in heard(sandbox, terminal.pid, lambda said: "=of-the-shell=" in said))
host = sandbox.get_host(8000)
request = urllib.request.Request(f"http://127.0.0.1:{host.rsplit(':', 1)[1]}/", headers={"Host": host})
check("a service goes on", b"Directory listing" in urllib.request.urlopen(request).read())
now = float(sandbox.commands.run("date +%s.%N").stdout)
check("the clock is right", abs(now - time.time()) < 2)
check("files and variables are kept", sandbox.files.read("file") + sandbox.commands.run("echo $A").stdout == "keptkept\n")
new = sandbox.commands.run("sleep 50", background=True, timeout=0)
check("a new command is another one", new.pid not in listed and sandbox.commands.kill(new.pid))
check("signals reach them", sandbox.commands.kill(counter.pid) and sandbox.commands.kill(server.pid))

# Again, and again: each time from where it was.
for _ in range(2):
    sandbox.pause()
    sandbox = Sandbox.connect(id, timeout=300)
sandbox.pty.send_stdin(terminal.pid, b"echo =$SECRET=\n")
check("a terminal goes on twice", "=of-the-shell=" in heard(sandbox, terminal.pid, lambda said: "=of-the-shell=" in said))

# A removed file that is open cannot be kept with its process: the files alone are.
holder = sandbox.commands.run("exec 3> /tmp/removed; rm /tmp/removed; echo ready; sleep 300", background=True, timeout=0)
time.sleep(0.5)
sandbox.pause()
sandbox = Sandbox.connect(id, timeout=300)
check("a removed file that is open", sandbox.commands.list() == [] and sandbox.files.read("file") == "kept")

# Files alone, at either end.
sandbox.pause(mode="filesystem")
sandbox = Sandbox.connect(id, timeout=300)
check("a pause of files alone", sandbox.commands.list() == [] and sandbox.files.read("file") == "kept")
sandbox.commands.run("nohup sleep 301 > /dev/null 2>&1 &")
sandbox.pause()
sandbox = Sandbox.connect(id, timeout=300, on_resume="reboot")
check("a resume of files alone", sandbox.commands.run("pgrep -f 'sleep 30[1]' || echo none").stdout == "none\n")
forks = []
sandbox.commands.run("nohup sleep 302 > /dev/null 2>&1 &")
for one in sandbox.fork(count=2, timeout=60):
    check("a fork has files alone", one.commands.run("cat file; pgrep -f 'sleep 30[2]' || echo none").stdout == "keptnone\n")
    one.kill()
check("and what was forked goes on", sandbox.commands.run("pgrep -f 'sleep 30[2]'").stdout != "")

# By its time, and by a request.
ends = create(timeout=10, lifecycle={"on_timeout": "pause", "auto_resume": True})
ends.commands.run("nohup sleep 303 > /dev/null 2>&1 &")
until = time.time() + 60
while time.time() < until and Sandbox.get_info(ends.sandbox_id).state != SandboxState.PAUSED:
    time.sleep(0.1)
check("its time pauses it, and a request resumes it", ends.commands.run("pgrep -f 'sleep 30[3]'").stdout != "")
check("kill", ends.kill() and sandbox.kill())
print("done", flush=True)
