"""A tool that logs what its arguments say, as lines before its reply, to callers that want it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from support.module_server import Request
from support.waiting import PATIENCE_SECONDS


async def tell(request: Request) -> web.Response:
    """`messages`: what to log; `lines`: what else to write; `times`: how often; `until`: a file that is waited for then, and `again` logged meanwhile."""
    return web.Response(body=_lines(request), headers={"Content-Type": "application/x-ndjson"})


async def _lines(request: Request) -> AsyncIterator[bytes]:
    arguments: dict[str, Any] = request["arguments"]
    messages = arguments.get("messages", []) if "log_level" in request else []
    for _ in range(arguments.get("times", 1)):
        for message in messages:
            yield json.dumps({"log": message}).encode() + b"\n"
    for line in arguments.get("lines", []):
        yield line.encode() + b"\n"
    if until := arguments.get("until"):
        async for line in _lines_until(Path(until), arguments.get("again")):
            yield line
    said = request.get("log_level")
    yield json.dumps({"tool_name": request["tool_name"], "success": True, "result": said, "error": None}).encode()


async def _lines_until(go: Path, message: Any) -> AsyncIterator[bytes]:
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        while not go.exists():
            if message is not None:
                yield json.dumps({"log": message}).encode() + b"\n"
            await asyncio.sleep(0.05)
