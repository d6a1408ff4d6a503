"""agno: the tools of its toolkit for E2B, called as its agents call them. Left out are those that its version has for another
client than the one that it installs: the list of sandboxes, watches, and downloads of text."""
import base64
import json
import pathlib
import tempfile

from agno.tools.e2b import E2BTools

from checks import check, done, fetched

tools = E2BTools(timeout=240)
try:
    said = tools.run_python_code("print('out')\nx = 6 * 7\nx")
    check("code", "out" in said and "Result 1: 42" in said, said)
    check("its variables stay", "Result 1: 43" in tools.run_python_code("x + 1"))
    check("an error", tools.run_python_code("1 / 0").startswith("Error: ZeroDivisionError"))

    with tempfile.TemporaryDirectory() as dir:
        here = pathlib.Path(dir)
        tools.run_python_code("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.title('T')\nplt.show()")
        said = tools.download_png_result(agent=None, output_path=str(here / "plot.png"))
        check("a picture", (here / "plot.png").read_bytes().startswith(b"\x89PNG") and len(said.images) == 1, said)
        (here / "up.bin").write_bytes(base64.b64decode("AP8BCg=="))
        check("a file goes up", tools.upload_file(str(here / "up.bin"), "/home/user/up.bin") == "/home/user/up.bin")
    said = tools.run_command("od -An -tx1 up.bin; echo e >&2")
    check("a command", json.loads(said) == ["STDOUT:\n 00 ff 01 0a\n", "STDERR:\ne\n"], said)
    said = tools.run_command("exit 3")
    check("one that fails", json.loads(said)["status"] == "error" and "3" in said, said)

    check("text goes up", tools.write_file_content("/home/user/note.txt", "täglich\n") == "/home/user/note.txt")
    check("and down", tools.read_file_content("/home/user/note.txt") == "täglich\n")
    said = tools.list_files("/home/user")
    check("a list", "- note.txt (File, 9 bytes)" in said and "- up.bin (File, 4 bytes)" in said, said)

    said = tools.stream_command("for n in 1 2; do echo $n; sleep 0.2; done")
    check("output while it comes", "".join(json.loads(said)).replace("STDOUT: ", "") == "1\n2\n", said)
    running = tools.run_background_command("sleep 100")
    sleeps = "cat /proc/[0-9]*/comm | grep -cx sleep || true"
    check("a command of its own", tools.run_command(sleeps) == json.dumps(["STDOUT:\n1\n"]))
    check("is ended", tools.kill_background_command(running) == "Background command terminated successfully.")
    check("and gone", tools.run_command(sleeps) == json.dumps(["STDOUT:\n0\n"]))

    url = tools.run_server("cd /home/user && exec python3 -m http.server 8000", 8000)
    check("a port", fetched(url.removeprefix("http://"), "/note.txt") == "täglich\n", url)
    check("its address", tools.get_public_url(8000) == url, url)
    check("its time", tools.set_sandbox_timeout(120) == "120")
finally:
    said = tools.shutdown_sandbox()
check("is shut down", json.loads(said)["content"] is True, said)
done()
