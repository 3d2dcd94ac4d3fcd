"""The official SDK's server with one tool that calls the module directly: `python -m benchmarks.features.sdk_server PORT MODULE_URL`."""

import json
import sys
from typing import Any

import aiohttp
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server

_SCHEMA = {"type": "object"}


def main() -> None:
    """Serve in its fastest way: no sessions, plain JSON, uvloop and httptools, and aiohttp to the module."""
    port, module = int(sys.argv[1]), sys.argv[2]
    sessions: list[aiohttp.ClientSession] = []  # one, made on the server's loop

    async def call(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        asked = {"tool_name": "instant.echo", "arguments": params.arguments or {}}
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        async with sessions[0].post(f"{module}/execute", json=asked) as answer:
            result = (await answer.json())["result"]
        text = types.TextContent(type="text", text=json.dumps(result))
        return types.CallToolResult(content=[text], structured_content=result)

    async def tools(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=_SCHEMA)])

    server: Server[Any] = Server("peer", on_call_tool=call, on_list_tools=tools)
    app = server.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=3600,  # or it hangs up while others have their turn
    )


if __name__ == "__main__":
    main()
