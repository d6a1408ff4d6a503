"""Cases that people reported of programs like this one, by the unmodified Python SDK: their numbers are in the lines."""
import io
import os
import time

from e2b import Sandbox
from e2b.sandbox.filesystem.filesystem import WriteEntry

from last import last


def check(name, good, said=""):
    assert good, (name, said)
    print(name, flush=True)


sandbox = Sandbox.create(timeout=240)
files, run = sandbox.files, sandbox.commands.run

# A kill ends what its command started, at once.
tree = run("bash -c 'sleep 4321 & sleep 4322 & wait'", background=True)
while run("pgrep -fc '^sleep 432[12]' || true").stdout.strip() != "2":
    time.sleep(0.1)
began = time.time()
check("r53 a kill is quick", tree.kill() and time.time() - began < 10)
left = run("sleep 1; pgrep -fa '^sleep 432[12]' || echo none").stdout
check("r53 and leaves nothing", left == "none\n", left)

# Bytes are what they are.
data = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
files.write("/tmp/b.png", data)
check("r55 a file", bytes(files.read("/tmp/b.png", format="bytes")) == data)
slow = "import os, time\nfor c in '日本語€ñ'.encode(): os.write(1, bytes([c])); time.sleep(.03)"
said = run(f'python3 -c "{slow}"').stdout
check("r55 letters in pieces", said == "日本語€ñ", said)
said = run("python3 -c \"print('日本語€ñ' * 100000)\"").stdout
check("r55 letters between pieces", said == "日本語€ñ" * 100_000 + "\n")
large = os.urandom(1 << 20) * 40
files.write("/tmp/large", large)
check("r55 a large file", bytes(files.read("/tmp/large", format="bytes")) == large)
name = "/tmp/a b/%41 ?#&=+é日😀'\".txt"
files.write(name, "x")
check("r55 a name", files.read(name) == "x" and [one.name for one in files.list("/tmp/a b")] == [name[9:]])
files.write("/tmp/empty", "")
files.write("/tmp/streamed", io.BytesIO(b"streamed"))
check("r55 empty and streamed", (files.read("/tmp/empty"), files.read("/tmp/streamed")) == ("", "streamed"))

# Letters are letters, and who has no network hears at once.
check("r57 letters", run("printf 'ä' | wc -m; touch /tmp/ä; ls /tmp/ä").stdout == "1\n/tmp/ä\n")
said = run("echo $PIP_RETRIES $npm_config_fetch_retries $PIP_BREAK_SYSTEM_PACKAGES").stdout
check("pip and npm", said == "0 0 1\n", said)

# Input.
count = run("wc -c", background=True, stdin=True)
for _ in range(16):
    sandbox.commands.send_stdin(count.pid, "x" * 65_536)
sandbox.commands.close_stdin(count.pid)
check("r58 a mebibyte of input", count.wait().stdout.strip() == str(1 << 20))
began = time.time()
said = run("timeout 30 cat; echo $?").stdout
check("r58 no input ends", said == "0\n" and time.time() - began < 20, said)

# Servers in the background do not keep their command.
for port, command in (
    (8201, "nohup python3 -m http.server 8201 >/dev/null 2>&1 &"),
    (8202, "setsid python3 -m http.server 8202 >/tmp/l 2>&1 </dev/null & echo started"),
    (8203, "(python3 -m http.server 8203 >/tmp/l3 2>&1 &)"),
):
    run(command, timeout=30)
    look = f"for i in $(seq 100); do curl -s --noproxy '*' -o /dev/null localhost:{port} && exit; sleep 0.2; done; exit 1"
    check(f"r60 a server {port}", run(look, timeout=60).exit_code == 0)

# Projects of more files than a request had room for.
files.write_files([WriteEntry(path=f"/home/user/p/d{n % 20}/f{n}", data=f"{n}") for n in range(300)])
check("r62 a project", run("find p -type f | wc -l; cat p/d19/f299").stdout == "300\n299")

# A pause keeps what was written.
sandbox.pause()
again = Sandbox.connect(sandbox.sandbox_id)
check("r63 a pause", again.files.read("/home/user/p/d0/f0") == "0" and again.commands.run("echo again").stdout == "again\n")
again.kill()
last()
