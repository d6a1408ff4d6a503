"""crewai-tools: its tools of commands and files, as an agent calls them, in sandboxes of one call and in one that stays. Its tool
of files cannot append with a client of today, which reads a `bytearray` and writes none: that is between the two of them."""
from crewai_tools.tools.e2b_sandbox_tool import E2BExecTool, E2BFileTool

from checks import check, done

# A sandbox for each call.
said = E2BExecTool(envs={"GREETING": "hi there"}).run(command='echo "$GREETING"; id -un')
check("a command", said["exit_code"] == 0 and said["stdout"] == "hi there\nuser\n", said)
said = E2BExecTool().run(command='pwd; echo "$A" >&2', cwd="/tmp", envs={"A": "b"})
check("its directory and variables", (said["stdout"], said["stderr"]) == ("/tmp\n", "b\n"), said)

# One that stays, and a second tool that joins it by its id.
files = E2BFileTool(persistent=True, metadata={"of": "crewai"})
text = "täglich\n" * 3
said = files.run(action="write", path="/home/user/deep/er/note.txt", content=text)
check("a file is written", said["status"] == "written" and said["bytes"] == len(text.encode()), said)
said = files.run(action="read", path="/home/user/deep/er/note.txt")
check("and read", said["content"] == text and said["encoding"] == "utf-8", said)
said = files.run(action="write", path="/home/user/raw", content="AP8B", binary=True)
said = files.run(action="read", path="/home/user/raw", binary=True)
check("bytes", said["content"] == "AP8B", said)
said = files.run(action="list", path="/home/user/deep", depth=2)
check("a list", sorted(one["name"] for one in said["entries"]) == ["er", "note.txt"], said)
said = files.run(action="info", path="/home/user/raw")
check("what a file is", said["size"] == 3 and said["owner"] == "user", said)
check("it is there", files.run(action="exists", path="/home/user/raw")["exists"])
files.run(action="delete", path="/home/user/raw")
check("and gone", not files.run(action="exists", path="/home/user/raw")["exists"])
check("a directory", files.run(action="mkdir", path="/home/user/made")["created"])

id = files._persistent_sandbox.sandbox_id
said = E2BExecTool(sandbox_id=id).run(command="wc -l < deep/er/note.txt; ls -d ~/made")
check("another tool joins", said["stdout"] == "3\n/home/user/made\n", said)
files.close()
done()
