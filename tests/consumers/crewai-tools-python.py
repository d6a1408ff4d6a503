"""crewai-tools: its tool of Python code, which is the code interpreter."""
from crewai_tools.tools.e2b_sandbox_tool import E2BPythonTool

from checks import check, done

tool = E2BPythonTool(persistent=True)
said = tool.run(code="import math\nx = math.factorial(10)\nprint('out')\nx")
check("a result", said["text"] == "3628800" and said["stdout"] == ["out\n"] and said["error"] is None, said)
check("its variables stay", tool.run(code="x // 10")["text"] == "362880")
said = tool.run(code="[][1]")
check("an error", said["error"]["name"] == "IndexError" and "IndexError" in said["error"]["traceback"], said)
said = tool.run(code="import pandas as pd\npd.DataFrame({'a': [1, 2]})")
check("a table", "<table" in said["results"][0]["html"], said)
said = tool.run(code="import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
check("a picture", said["results"][0]["png"].startswith("iVBOR"), said)
said = tool.run(code="import os; os.environ['A']", envs={"A": "b"})
check("variables of a call", said["text"] == "b", said)
tool.close()
check("a sandbox of one call", E2BPythonTool().run(code="6 * 7")["text"] == "42")
done()
