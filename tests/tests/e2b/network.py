"""The unmodified Python SDK changes the network of a sandbox that runs: both kinds of client."""
import asyncio
import os

from e2b import AsyncSandbox, Sandbox
from e2b.exceptions import NotFoundException, SandboxException

from last import last

REACH = "for name in a b c; do curl -sf -m 5 http://$name.example/ || echo no; done"


def check(name, good):
    assert good, name
    print(name, flush=True)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def names(sandbox):
    return sandbox.get_info().network["allow_out"] or []


def sync():
    sandbox = Sandbox.create(timeout=300)

    def reach():
        return sandbox.commands.run(REACH).stdout.split()

    check("no network at first", reach() == ["no", "no", "no"])
    sandbox.update_network({"allow_out": ["a.example", "b.example"]})
    check("widened", reach() == ["hello", "hello", "no"] and sorted(names(sandbox)) == ["a.example", "b.example"])
    why = refused(SandboxException, lambda: sandbox.update_network({"allow_out": ["a.example", "c.example"]}))
    check("a name without a grant is refused", "c.example" in why)
    check("and changes nothing", reach() == ["hello", "hello", "no"])
    sandbox.update_network({"allow_out": ["b.example"], "deny_out": ["0.0.0.0/0"]})
    check("narrowed", reach() == ["no", "hello", "no"])
    sandbox.pause()
    why = refused(SandboxException, lambda: sandbox.update_network({}))
    check("a paused one keeps its network", "paused" in why)
    sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=300)
    check("a resumed one has its last network", reach() == ["no", "hello", "no"] and names(sandbox) == ["b.example"])
    snapshot = sandbox.create_snapshot()
    child = Sandbox.create(snapshot.snapshot_id, timeout=60)
    check("a child of its snapshot has what it asks for", child.commands.run(REACH).stdout.split() == ["no"] * 3)
    child.kill()
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    sandbox.update_network({"allow_internet_access": True})
    check("cleared", reach() == ["no", "no", "no"] and names(sandbox) == [])
    for body, word in (({"allow_out": ["8.8.8.8"]}, "only names"), ({"deny_out": ["a.example"]}, "denyOut")):
        check(f"refused: {word}", word in refused(SandboxException, lambda: sandbox.update_network(body)))
    sandbox.kill()
    check("one that is over", refused(NotFoundException, lambda: sandbox.update_network({})) != "")


async def asynchronous():
    sandbox = await AsyncSandbox.create(timeout=300)
    await sandbox.update_network({"allow_out": ["a.example"]})
    done = await sandbox.commands.run(REACH)
    check("the asynchronous client", done.stdout.split() == ["hello", "no", "no"])
    await sandbox.kill()


sync() if os.environ["KIND"] == "sync" else asyncio.run(asynchronous())
last()
