"""langchain-e2b with deepagents: the backend's own calls, those of the asynchronous one, and a deep agent whose model is a list of
answers."""
import asyncio

import e2b
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_e2b import AsyncE2BSandbox, E2BSandbox

from checks import check, done


class Scripted(FakeMessagesListChatModel):
    """langchain's own model for tests, which says one thing after the other; tools change nothing of that."""

    def bind_tools(self, tools, **_):
        return self


def call(name, id, **args):
    return AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": id}])


def files(backend):
    said = backend.write("/home/user/deep/note.txt", "one\ntwo\nthree\n")
    check("a file is written", said.error is None and said.path == "/home/user/deep/note.txt", said)
    said = backend.write("/home/user/deep/note.txt", "again")
    check("not twice", said.error is not None, said)
    said = backend.edit("/home/user/deep/note.txt", "two", "2")
    check("it is edited", said.error is None and said.occurrences == 1, said)
    said = backend.read("/home/user/deep/note.txt", offset=1, limit=1)
    check("and read from a line on", said.error is None and said.file_data["content"].strip() == "2", said)
    said = backend.ls("/home/user/deep")
    check("a list", [one["path"] for one in said.entries] == ["/home/user/deep/note.txt"], said)
    said = backend.grep("thr", path="/home/user/deep")
    check("a search", [(one["line"], one["text"]) for one in said.matches] == [(3, "three")], said)
    said = backend.glob("**/*.txt", path="/home/user")
    check("a pattern", any(one["path"].endswith("note.txt") for one in said.matches), said)
    raw = bytes(range(256)) * 300
    check("bytes go up", backend.upload_files([("/home/user/raw", raw)])[0].error is None)
    check("and come back", backend.download_files(["/home/user/raw"])[0].content == raw)
    check("a file that is not there", backend.download_files(["/home/user/none"])[0].error == "file_not_found")


def agent(backend):
    """An agent that writes a program, runs it and says what it said."""
    model = Scripted(
        responses=[
            call("write_file", "1", file_path="/home/user/sum.py", content="print(sum(range(10)))\n"),
            call("execute", "2", command="python3 sum.py"),
            AIMessage(content="It is 45."),
        ]
    )
    said = create_deep_agent(model=model, backend=backend).invoke({"messages": [("user", "the sum of 0 to 9, by a program")]})
    results = [one.content for one in said["messages"] if isinstance(one, ToolMessage)]
    check("an agent's tools", len(results) == 2 and "45" in results[1], results)
    check("an agent's answer", said["messages"][-1].content == "It is 45.")


async def asynchronous():
    sandbox = await e2b.AsyncSandbox.create(timeout=120)
    try:
        backend = AsyncE2BSandbox(sandbox=sandbox)
        said = await backend.aexecute("echo $((6 * 7))")
        check("a command, asynchronously", (said.output, said.exit_code) == ("42\n", 0), said)
        said = await backend.awrite("/home/user/a.txt", "x\n")
        check("a file, asynchronously", said.error is None and (await backend.als("/home/user")).entries is not None, said)
        said = await asyncio.gather(*(backend.aexecute(f"sleep 0.2; echo {n}") for n in range(5)))
        check("several at once", [one.output for one in said] == [f"{n}\n" for n in range(5)], said)
    finally:
        await sandbox.kill()


sandbox = e2b.Sandbox.create(timeout=240)
try:
    backend = E2BSandbox(sandbox=sandbox)
    check("its id", backend.id == sandbox.sandbox_id)
    said = backend.execute("echo out; echo err >&2; exit 3")
    check("a command that fails", said.exit_code == 3 and "out\n" in said.output and "err\n" in said.output, said)
    said = backend.execute("sleep 30", timeout=1)
    check("one that takes too long", said.exit_code == 124, said)
    files(backend)
    agent(backend)
finally:
    sandbox.kill()
asyncio.run(asynchronous())
done()
