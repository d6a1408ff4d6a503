"""smolagents: its executor, and an agent whose model is a list of answers, with a tool that is sent into the sandbox."""
from PIL import Image
from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

from checks import check, done

executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF), timeout=240)
try:
    said = executor("print('out')\nx = 20\nx + 1")
    check("a result", str(said.output) == "21" and said.logs == "out\n" and not said.is_final_answer, said)
    check("its variables stay", str(executor("x").output) == "20")
    executor.send_variables({"given": {"a": [1, 2.5, None]}})
    check("variables are sent", executor("given['a'][1]").output == "2.5")
    try:
        executor("def f():\n    return 1 / 0\nf()")
        check("an error is raised", False)
    except AgentError as error:
        check("an error is raised", "ZeroDivisionError" in str(error), str(error))
    said = executor("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.gcf()")
    check("a picture", isinstance(said.output, Image.Image) and min(said.output.size) > 50, said)
finally:
    executor.cleanup()


class Scripted(Model):
    """A model that says one thing after the other."""

    def __init__(self, answers):
        super().__init__(model_id="scripted")
        self.answers = list(answers)

    def generate(self, messages, **_):
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.answers.pop(0))


@tool
def shout(text: str) -> str:
    """Makes a text loud.

    Args:
        text: what is said
    """
    return text.upper() + "!"


ANSWERS = [
    "Thought: a number.\n<code>\ntotal = sum(range(10))\nprint(total)\n</code>",
    "Thought: the answer.\n<code>\nfinal_answer(f'{shout(\"hello\")} {total}')\n</code>",
]
with CodeAgent(tools=[shout], model=Scripted(ANSWERS), executor_type="e2b", verbosity_level=LogLevel.OFF) as agent:
    said = agent.run("Say hello, and a number.")
check("an agent ends with its answer", said == "HELLO! 45", said)
done()
