"""openai-agents: a session of its sandbox client for E2B on the template of the code interpreter."""
import asyncio

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox.manifest import Manifest

from checks import check, done


async def main():
    options = E2BSandboxClientOptions(sandbox_type="e2b_code_interpreter", timeout=240)
    session = await E2BSandboxClient().create(manifest=Manifest(root="/home/user/work"), options=options)
    async with session:
        found = await session.exec("python3 -c 'import numpy; print(numpy.arange(10).sum())'")
        check("a command", (found.exit_code, found.stdout) == (0, b"45\n"), (found.stdout, found.stderr))


asyncio.run(main())
done()
