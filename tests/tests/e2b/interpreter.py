"""The unmodified code interpreter SDK, synchronous, against a server of ours. Fails at the first check."""
import base64
import time

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

from last import last


def check(name, good):
    assert good, name
    print(name, flush=True)


sandbox = Sandbox.create(timeout=240, envs={"GREETING": "hi there"})
info = sandbox.get_info()
check("template", info.template_id == "code-interpreter-v1")
check("memory", info.memory_mb >= 1024)

# Results, and the state between executions.
done = sandbox.run_code("x = 20\nx + 1")
check("result", done.text == "21" and done.error is None and done.execution_count == 1)
check("state", sandbox.run_code("x").text == "20")
check("string", sandbox.run_code("'a ' + \"b\"").text == "a b")
check("nothing", sandbox.run_code("y = 1").text is None)
check("envs", sandbox.run_code("import os; os.environ['GREETING']").text == "hi there")
check("envs of a call", sandbox.run_code("os.environ['A']", envs={"A": "it's"}).text == "it's")
check("envs are gone", sandbox.run_code("os.environ.get('A', 'none')").text == "none")
check("await", sandbox.run_code("import asyncio\nawait asyncio.sleep(0, 'slept')").text == "slept")
table = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})").results[0]
check("table", "<table" in table.html and table.data == {"a": [1, 2]} and table.is_main_result)
shown = sandbox.run_code("from IPython.display import display, JSON, Markdown\ndisplay(Markdown('# x'), JSON({'k': 1}))")
check("display", [one.markdown for one in shown.results][0] == "# x" and shown.results[1].json == {"k": 1})

# Output while it comes.
lines, times = [], []
code = "import sys, time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.3)\nprint('e', file=sys.stderr)"
errors = []
done = sandbox.run_code(
    code,
    on_stdout=lambda message: (lines.append(message.line), times.append(time.time())),
    on_stderr=lambda message: errors.append(message.line),
)
check("stdout", lines == ["0\n", "1\n", "2\n"] and done.logs.stdout == lines)
check("stderr", errors == ["e\n"] and done.logs.stderr == errors)
check("streamed", times[-1] - times[0] > 0.4)

# Errors.
failed = sandbox.run_code("def f():\n    return 1 / 0\nf()")
check("error", failed.error.name == "ZeroDivisionError" and failed.error.value == "division by zero")
check("traceback", "ZeroDivisionError" in failed.error.traceback and "return" in failed.error.traceback)
check("syntax", sandbox.run_code("if").error.name == "SyntaxError")

# A picture, and the data of its chart.
plot = sandbox.run_code(
    "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.title('T')\nplt.xlabel('X')\nplt.show()"
).results[0]
check("png", base64.b64decode(plot.png).startswith(b"\x89PNG"))
check("chart", (plot.chart.type.value, plot.chart.title, plot.chart.x_label) == ("bar", "T", "X"))

# Contexts.
one, two = sandbox.create_code_context(), sandbox.create_code_context(cwd="/tmp")
sandbox.run_code("z = 1", context=one)
check("contexts apart", sandbox.run_code("z", context=two).error.name == "NameError")
check("context cwd", (two.cwd, sandbox.run_code("os = __import__('os'); os.getcwd()", context=two).text) == ("/tmp", "/tmp"))
check("contexts", {one.id, two.id} <= {context.id for context in sandbox.list_code_contexts()})
sandbox.restart_code_context(one)
check("restarted", sandbox.run_code("z", context=one).error.name == "NameError")
sandbox.remove_code_context(one)
sandbox.remove_code_context(two.id)
for gone in [lambda: sandbox.run_code("1", context=one), lambda: sandbox.remove_code_context(one)]:
    try:
        gone()
        check("removed context", False)
    except NotFoundException:
        pass
for wrong in [{"language": "cobol"}, {"cwd": "/nowhere"}, {"cwd": "/root"}]:
    try:
        sandbox.create_code_context(**wrong)
        check(f"refused {wrong}", False)
    except SandboxException as refusal:
        check(f"refused {wrong}", "400" in str(refusal))

# Kernels are forks of one process, and nothing that counts is the same in two of them.
draw = "import numpy, random, uuid\n(random.random(), float(numpy.random.rand()), str(uuid.uuid4()), str(numpy.random.default_rng().random()))"
three = [sandbox.create_code_context(cwd="/tmp") for _ in range(3)]
drawn = [eval(sandbox.run_code(draw, context=context).text) for context in three]
check("random numbers apart", all(len({draws[at] for draws in drawn}) == 3 for at in range(4)))
places = [sandbox.run_code("import os; os.getcwd()", context=context).text for context in three]
check("places of forks", places == ["/tmp"] * 3)
above = "import os\nopen(f'/proc/{os.getppid()}/cmdline').read()"
check("forked", all("zygote.py" in sandbox.run_code(above, context=context).text for context in three))
# What is installed later is there in the next context.
package = "/home/user/.local/lib/python3.11/site-packages"
version = sandbox.run_code("import sys; '%d.%d' % sys.version_info[:2]").text
sandbox.files.write(f"{package.replace('3.11', version)}/mine.py", "X = 7")
later = sandbox.create_code_context()
check("installed later", sandbox.run_code("import mine; mine.X", context=later).text == "7")
for context in [*three, later]:
    sandbox.remove_code_context(context)
# A directory that is not there any more, or that may not be entered: an error for who asks, and nothing for the others.
sandbox.run_code("kept = 1")
sandbox.files.make_dir("/home/user/gone")
odd = sandbox.create_code_context(cwd="/home/user/gone")
sandbox.commands.run("rmdir /home/user/gone; mkdir -p closed; chmod 0 closed")
for wrong in [lambda: sandbox.restart_code_context(odd), lambda: sandbox.create_code_context(cwd="/home/user/closed")]:
    try:
        wrong()
        check("a directory that cannot be entered", False)
    except SandboxException:
        pass
check("the others go on", sandbox.run_code("kept").text == "1")
# A module that ends its process when it is loaded ends nothing but who loads it.
sandbox.commands.run(f"mkdir -p {package.replace('3.11', version)}/pandas; echo 'import os; os._exit(3)' >{package.replace('3.11', version)}/pandas/__init__.py")
broken = sandbox.create_code_context()
time.sleep(1.5)
second = sandbox.create_code_context()
check("beside a broken module", [sandbox.run_code("6 * 7", context=one).text for one in (broken, second)] == ["42"] * 2)
check("the broken module", sandbox.run_code("import pandas", context=second).error.name == "KernelDied")
check("the others go on still", sandbox.run_code("kept").text == "1")
sandbox.commands.run(f"rm -r {package.replace('3.11', version)}/pandas")
for context in [broken, second]:
    sandbox.remove_code_context(context)
# The process that they are forks of is killed: kernels begin anew.
sandbox.run_code("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
# They look for it every second.
time.sleep(2)
check("a kill is told", sandbox.run_code("1").error.name == "KernelDied")
check("after a kill", sandbox.run_code("x = 20; 6 * 7").text == "42")
check("a context after a kill", sandbox.run_code("6 * 7", context=sandbox.create_code_context()).text == "42")

# Bash.
bash = sandbox.run_code("cd /tmp; N=5; echo $N $B", language="bash", envs={"B": "x y"})
check("bash", bash.logs.stdout == ["5 x y\n"] and bash.error is None)
check("bash state", sandbox.run_code("echo $N [$B]; pwd", language="bash").logs.stdout == ["5 []\n", "/tmp\n"])
check("bash error", sandbox.run_code("false", language="bash").error is not None)

# What does not end, and what ends the kernel.
since = time.time()
try:
    sandbox.run_code("while True: pass", timeout=1)
    check("timeout", False)
except TimeoutException:
    check("timeout", time.time() - since < 5)
check("interrupted", sandbox.run_code("x").text == "20")
died = sandbox.run_code("import os; os._exit(1)")
check("died", died.error.name == "KernelDied")
check("anew", sandbox.run_code("x").error.name == "NameError")

# The file system is the sandbox's own, and the user its user.
sandbox.files.write("in.csv", "a,b\n1,2\n")
check("files", sandbox.run_code("open('in.csv').read()").text == "a,b\\n1,2\\n")
check("user", sandbox.run_code("import os; os.getuid()").text == "1000")
check("no setuid", "no new privileges" in sandbox.commands.run("sudo -n id 2>&1 || true").stdout)
# What E2B's users find there.
names = "aiohttp bs4 docx imageio joblib lxml nltk openpyxl orjson plotly pytest pytz requests scipy seaborn sklearn sympy xarray xlrd"
found = sandbox.run_code(f"import importlib\nfor n in '{names}'.split(): importlib.import_module(n)", timeout=120)
check("packages", found.error is None)
saved = sandbox.run_code("from PIL import Image\nImage.new('RGB', (4, 4)).save('/tmp/i.png'); Image.open('/tmp/i.png').size")
check("an image that is saved is shown", base64.b64decode(saved.results[0].png).startswith(b"\x89PNG") and saved.text == "(4, 4)")
box = sandbox.run_code("import matplotlib.pyplot as plt\nplt.boxplot([[1, 2, 3], [2, 3, 4]])\nplt.show()").results[0]
check("a box chart is drawn", base64.b64decode(box.png).startswith(b"\x89PNG"))
tools = "python3 -m venv /tmp/v && node -e 'console.log(6 * 7)' && npm --version >/dev/null && grep -q '^deb ' /etc/apt/sources.list && echo there"
check("venv, node, npm, apt", sandbox.commands.run(tools, timeout=120).stdout == "42\nthere\n")
refused = sandbox.commands.run("pip install nothing-of-this-name 2>&1 || true", timeout=60).stdout
check("pip says what fails", "externally-managed" not in refused and "No matching distribution" in refused)
check("git, curl", sandbox.commands.run("git --version && curl --version && python --version").exit_code == 0)
check("kill", sandbox.kill())
last()
