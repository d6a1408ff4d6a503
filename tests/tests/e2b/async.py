"""The unmodified Python SDK, asynchronous, against a server of ours."""
import asyncio

from e2b import AsyncSandbox, CommandExitException

from last import last


def check(name, good):
    assert good, name
    print(name, flush=True)


async def main():
    sandbox = await AsyncSandbox.create(timeout=60, metadata={"who": "async"})
    done = await sandbox.commands.run("echo out; echo err >&2")
    check("run", (done.exit_code, done.stdout, done.stderr) == (0, "out\n", "err\n"))
    together = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(8)))
    check("eight at once", [one.stdout for one in together] == [f"{n}\n" for n in range(8)])
    # Older clients send their input in single calls, and cannot close it.
    streams = hasattr(sandbox.commands, "stream_input")
    reader = await sandbox.commands.run("cat" if streams else "head -n 1", background=True, stdin=True)
    if streams:
        handle = sandbox.commands.stream_input(reader.pid)
        await handle.send("a")
        await handle.send("b\n")
        await handle.close()
        await sandbox.commands.close_stdin(reader.pid)
    else:
        await sandbox.commands.send_stdin(reader.pid, "a")
        await sandbox.commands.send_stdin(reader.pid, "b\n")
    check("input", (await reader.wait()).stdout == "ab\n")
    events = []
    handle = await sandbox.files.watch_dir("/tmp", on_event=lambda event: events.append((event.name, event.type.value)), recursive=True)
    await sandbox.files.write("/tmp/below/x", "1")
    for _ in range(100):
        if ("below", "create") in events:
            break
        await asyncio.sleep(0.05)
    await handle.stop()
    check("watch", ("below", "create") in events)
    check("files", await sandbox.files.read("/tmp/below/x") == "1")
    sleeper = await sandbox.commands.run("sleep 100", background=True)
    check("kill", await sleeper.kill())
    try:
        await sleeper.wait()
        check("killed", False)
    except CommandExitException as error:
        check("killed", error.exit_code == -1)
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    check("connect", (await again.commands.run("echo x")).stdout == "x\n")
    check("is_running", await sandbox.is_running())
    await sandbox.pause()
    check("paused", not await sandbox.is_running())
    sandbox = await AsyncSandbox.connect(sandbox.sandbox_id)
    check("resumed", await sandbox.files.read("/tmp/below/x") == "1")
    check("kill the sandbox", await sandbox.kill())
    woken = await AsyncSandbox.create(timeout=8, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await woken.files.write("kept", "y")
    for _ in range(600):
        if not await woken.is_running():
            break
        await asyncio.sleep(0.1)
    done = await asyncio.gather(*[woken.commands.run("cat kept") for _ in range(5)])
    check("commands at once resume it", [one.stdout for one in done] == ["y"] * 5)
    check("kill what was resumed", await woken.kill())


asyncio.run(main())
last()
