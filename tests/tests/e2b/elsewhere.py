"""The unmodified Python SDK at a server that does not hold its sandbox: nothing is taken for done, or for gone."""
import os
import time

from e2b import Sandbox
from e2b.exceptions import SandboxException, SandboxNotFoundException

from last import last

HELD = "held by another process"
there = os.environ["OTHER_URL"]
sandbox = Sandbox.create(timeout=300)
wrong = {"api_url": there, "sandbox_url": there}
# Its agent alone is asked for at the wrong server.
other = Sandbox.connect(sandbox.sandbox_id, sandbox_url=there)
for name, call in {
    "pause": lambda: Sandbox.pause(sandbox.sandbox_id, **wrong),
    "connect": lambda: Sandbox.connect(sandbox.sandbox_id, **wrong),
    "set_timeout": lambda: Sandbox.set_timeout(sandbox.sandbox_id, 60, **wrong),
    "a snapshot": lambda: Sandbox.create_snapshot(sandbox.sandbox_id, **wrong),
    "metrics": lambda: Sandbox.get_metrics(sandbox.sandbox_id, **wrong),
    "is_running": lambda: other.is_running(),
    "a command": lambda: other.commands.run("true"),
    "a file": lambda: other.files.read("/etc/passwd"),
    "a list": lambda: other.files.list("/"),
}.items():
    try:
        said = call()
    except SandboxException as error:
        assert not isinstance(error, SandboxNotFoundException), (name, error)
        assert HELD in str(error), (name, error)
        print(name, error, flush=True)
    else:
        raise AssertionError(f"{name}: {said}")
assert sandbox.is_running() and sandbox.commands.run("echo here").stdout == "here\n"
# One without a worker makes none, and its user hears that at once.
since = time.monotonic()
try:
    Sandbox.create(api_url=os.environ["API_URL"])
except SandboxException as error:
    assert "holds no sandboxes" in str(error) and time.monotonic() - since < 3, error
else:
    raise AssertionError("made")
# Where it is held it is paused once, and another pause is told so by every server.
assert sandbox.pause() is not False
assert Sandbox.pause(sandbox.sandbox_id, **wrong) is False
# Whoever resumes it holds it.
resumed = Sandbox.connect(sandbox.sandbox_id, **wrong)
assert resumed.commands.run("echo there").stdout == "there\n"
assert Sandbox.kill(sandbox.sandbox_id)
last()
