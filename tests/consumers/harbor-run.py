"""harbor: a task, made here, run by the real program in its environment for E2B: twice at once with the agent that plays the task's
solution, which earns the reward, and with the one that does nothing, which does not and takes the template that is there by then.
The template is built from the task's Dockerfile; the agent's phase has no network, which changes that of the running sandbox."""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

from checks import check, done

HARBOR = pathlib.Path(sys.executable).parent / "harbor"
# From 0.26 on, commands have the variables of the Dockerfile, as Docker's have; E2B's do not.
HAS_IMAGE = tuple(int(part) for part in importlib.metadata.version("harbor").split(".")[:2]) >= (0, 26)
FILES = {
    "instruction.md": "Write the sum of the numbers in /app/sorted.txt to /app/out/sum.txt.\n",
    "task.toml": """\
schema_version = "1.4"
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
network_mode = "no-network"
[environment]
build_timeout_sec = 120.0
cpus = 1
memory_mb = 768
[environment.env]
GREETING = "hi there"
[solution.env]
OUT = "/app/out"
""",
    "environment/Dockerfile": """\
FROM e2bdev/base
ENV OF_IMAGE=image
WORKDIR /app
COPY numbers.txt /app/numbers.txt
RUN sort -n numbers.txt > sorted.txt && mkdir /app/out
""",
    "environment/numbers.txt": "30\n4\n8\n",
    "solution/solve.sh": """\
#!/bin/bash
set -eu
pwd
id -un
echo "$GREETING, ${OF_IMAGE-no image}"
awk '{ n += $1 } END { print n }' sorted.txt > "$OUT/sum.txt"
""",
    "tests/test.sh": """\
#!/bin/bash
reward=0
[ "$(head -n 1 /app/sorted.txt)" = 4 ] && [ "$(cat /app/out/sum.txt)" = 42 ] && reward=1
echo "the reward is $reward"
echo $reward > /logs/verifier/reward.txt
""",
}


def made(dir):
    for name, text in FILES.items():
        path = dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return dir


def trials(task, agent, count):
    """Runs the task so often at once with this agent: where each trial is, and what came of it."""
    words = [HARBOR, "run", "--path", task, "--env", "e2b", "--agent", agent, "--quiet", "--yes"]
    words += ["--n-attempts", count, "--n-concurrent", count, "--jobs-dir", "jobs", "--job-name", agent]
    ran = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(ran.stdout.decode(errors="replace"), flush=True)
    check(f"harbor ends, with {agent}", ran.returncode == 0, ran.stdout[-300:])
    found = list(pathlib.Path("jobs", agent).glob("*/result.json"))
    check("it has its trials", len(found) == count, found)
    for path in found:
        result = json.loads(path.read_text())
        failed = result.get("exception_info")
        check("without an exception", failed is None, failed and (failed["exception_type"], failed["exception_message"]))
        yield path.parent, result["verifier_result"]["rewards"]


task = made(pathlib.Path(os.environ["HOME"], "cofferdam-sum"))
for place, rewards in trials(task, "oracle", 2):
    check("the solution earns the reward", rewards == {"reward": 1.0}, rewards)
    said = (place / "agent/oracle.txt").read_text()
    wanted = f"/app\nroot\nhi there, {'image' if HAS_IMAGE else 'no image'}\n"
    check("it ran in its directory, as root, with its variables", said == wanted, said)
    said = (place / "verifier/test-stdout.txt").read_text()
    check("the verifier's output comes back", said == "the reward is 1\n", said)
for _, rewards in trials(task, "nop", 1):
    check("nothing earns none", rewards == {"reward": 0.0}, rewards)
done()
