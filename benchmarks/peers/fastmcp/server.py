"""FastMCP with one tool that calls the module directly: `python -m benchmarks.peers.fastmcp.server PORT MODULE_URL`."""

import sys
from typing import Any

import aiohttp
from fastmcp import FastMCP

PORT, MODULE = int(sys.argv[1]), sys.argv[2]

server = FastMCP("peer")
sessions: list[aiohttp.ClientSession] = []  # one, made on the server's loop


@server.tool
async def echo(title: str, text: str, tags: list[str], number: int, nested: dict[str, Any]) -> dict[str, Any]:
    """Echo."""
    arguments = {"title": title, "text": text, "tags": tags, "number": number, "nested": nested}
    if not sessions:
        sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    asked = {"tool_name": "instant.echo", "arguments": arguments}
    async with sessions[0].post(f"{MODULE}/execute", json=asked) as answer:
        result: dict[str, Any] = (await answer.json())["result"]
    return result


if __name__ == "__main__":
    # Its fastest way: no sessions, plain JSON, uvloop and httptools, and no log of each request.
    server.run(
        transport="http", host="127.0.0.1", port=PORT, stateless_http=True, json_response=True, show_banner=False,
        uvicorn_config={
            "loop": "uvloop", "http": "httptools", "access_log": False, "log_level": "warning",
            "timeout_keep_alive": 3600,  # or it hangs up while others have their turn
        },
    )  # fmt: skip
