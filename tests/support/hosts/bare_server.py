"""An MCP server over HTTP that leaves out what the protocol has a default for."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from toolfleet_modules.hosts.mcp.options import HttpServer

_KEPT = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}
_DISCOVERED = {**_KEPT, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
_TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("bare", "wrong")]
_ERROR = {"code": -32021, "message": "it needs sampling", "data": {"requiredCapabilities": {"sampling": {}}}}


@asynccontextmanager
async def bare_server() -> AsyncGenerator[HttpServer]:
    """A server of the newer era: the results of its calls say nothing but their content, and those of `wrong` are errors."""

    async def answer(request: web.Request) -> web.Response:
        asked: dict[str, Any] = await request.json()
        results: dict[str, Any] = {
            "server/discover": _DISCOVERED,
            "tools/list": {**_KEPT, "tools": _TOOLS},
            "tools/call": {"content": [{"type": "text", "text": "hoot"}]},
        }
        is_wrong = asked["params"].get("name") == "wrong"
        told = {"error": _ERROR} if is_wrong else {"result": results[asked["method"]]}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **told})

    app = web.Application()
    app.router.add_post("/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield HttpServer(f"http://127.0.0.1:{runner.addresses[0][1]}/mcp")
    finally:
        await runner.cleanup()
