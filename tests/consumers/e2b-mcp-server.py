"""e2b-mcp-server: the real program on its standard streams, asked by the client of the protocol's own library. Its version 0.1.1
knows E2B_DOMAIN alone, so the server has a domain and TLS here."""
import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from checks import check, done

# As its documentation starts it: the package has no program of its own.
START = "import e2b_mcp_server; e2b_mcp_server.main()"


async def run_code(session, code):
    answer = await session.call_tool("run_code", {"code": code})
    return answer.isError, answer.content[0].text


async def main():
    program = StdioServerParameters(command=sys.executable, args=["-c", START], env=dict(os.environ))
    async with stdio_client(program) as streams, ClientSession(*streams) as session:
        began = await session.initialize()
        check("its name", began.serverInfo.name == "e2b-code-mcp-server", began)
        tools = (await session.list_tools()).tools
        check("its tool", [one.name for one in tools] == ["run_code"] and "code" in tools[0].inputSchema["properties"], tools)
        failed, text = await run_code(session, "import sys\nprint(6 * 7)\nprint('e', file=sys.stderr)")
        check("code runs", not failed and json.loads(text) == {"stdout": ["42\n"], "stderr": ["e\n"]}, text)
        failed, text = await run_code(session, "%time 1\nimport numpy\nprint(numpy.arange(4).sum())")
        check("with packages", not failed and json.loads(text)["stdout"][-1].endswith("6\n"), text)
        failed, text = await run_code(session, "!id -un")
        check("as the user", not failed and "".join(json.loads(text)["stdout"]).strip() == "user", text)


asyncio.run(main())
done()
