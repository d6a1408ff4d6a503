"""The unmodified Python SDK while its server is stopped or killed and started again at the same address."""
import functools
import os
import sys
import time

from e2b import Sandbox, SandboxNotFoundException
from e2b.exceptions import SandboxNotRunningException

from last import last


def check(name, good):
    assert good, name
    print(name, flush=True)


create = functools.partial(Sandbox.create, headers={"X-Cofferdam-Class": os.environ["SANDBOX_CLASS"]})
sandbox = create(timeout=600)
sandbox.files.write("kept", "x")
command = sandbox.commands.run("sleep 300", background=True)
print(f"created {sandbox.sandbox_id}", flush=True)
# The test ends the server, starts it again, then says so.
sys.stdin.readline()
try:
    command.wait()
    check("the command that ran is lost", False)
except SandboxNotRunningException:
    check("the command that ran is lost", True)
check("is_running", not sandbox.is_running())
for name, call in {
    "a command": lambda: sandbox.commands.run("true"),
    "a file": lambda: sandbox.files.read("kept"),
    "a list": lambda: sandbox.files.list("/"),
}.items():
    try:
        call()
        check(name, False)
    except SandboxNotRunningException as error:
        check(name, "was not found" in str(error))
# A server that was killed is missed after some seconds; until then its sandboxes are another process's.
until = time.time() + 30
while time.time() < until:
    try:
        sandbox.get_info()
        time.sleep(0.2)
    except SandboxNotFoundException:
        break
for name, call in {
    "connect": lambda: Sandbox.connect(sandbox.sandbox_id),
    "set_timeout": lambda: sandbox.set_timeout(60),
    "get_info": lambda: sandbox.get_info(),
}.items():
    try:
        call()
        check(name, False)
    except SandboxNotFoundException:
        check(name, True)
# The first may find it while it is wiped.
sandbox.kill()
check("kill says that there is none", not sandbox.kill())
check("none is listed", Sandbox.list().next_items() == [])
fresh = create(timeout=60)
check("another is made", fresh.sandbox_id != sandbox.sandbox_id and not fresh.files.exists("kept"))
check("and killed", fresh.kill())
last()
