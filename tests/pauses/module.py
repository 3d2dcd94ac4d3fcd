"""A module that writes each effect down as it makes it: `python -m pauses.module KIND JOURNAL`, `plain` or `sdk`.

The plain one recognises no repeat and looks at no header: what its journal shows is the workers' own doing.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from toolfleet.sdk import Context, Module

NAME = "owls"
_BACKLOG = 1024


class Journal:
    """One line an effect, each in one write, in the order in which they happen."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, tool: str, key: str, value: int, call_id: str) -> None:
        os.write(self._file, (json.dumps([tool, key, value, call_id]) + "\n").encode())


def _sdk_module(journal: Journal) -> Any:
    module = Module(NAME)

    @module.tool(effect="idempotent")
    async def set(key: str, value: int, context: Context) -> int:  # noqa: A001 - the tool's name
        journal.write("set", key, value, context.call_id or "")
        return value

    @module.tool(effect="once")
    async def send(key: str, context: Context) -> str:
        journal.write("send", key, 0, context.call_id or "")
        return key

    return module.app


def _plain_module(journal: Journal) -> web.Application:
    parameters = {"key": "string", "value": "number"}

    def definition(name: str, effect: str, known: list[str]) -> dict[str, Any]:
        flat = [{"name": each, "type": parameters[each], "description": ""} for each in known]
        return {"name": f"{NAME}.{name}", "description": "", "effect": effect, "parameters": flat}

    async def manifest(_: web.Request) -> web.Response:
        tools = [definition("set", "idempotent", ["key", "value"]), definition("send", "once", ["key"])]
        return web.json_response({"module_name": NAME, "description": "", "tools": tools})

    async def execute(request: web.Request) -> web.Response:
        body = await request.json()
        tool, wish = body["tool_name"].partition(".")[2], body["arguments"]
        journal.write(tool, wish["key"], wish.get("value", 0), request.headers["Idempotency-Key"])
        return web.json_response({"tool_name": body["tool_name"], "success": True, "result": None, "error": None})

    app = web.Application()
    app.router.add_get("/manifest", manifest)
    app.router.add_post("/execute", execute)
    return app


async def _serve_plain(sock: socket.socket, journal: Journal) -> None:
    runner = web.AppRunner(_plain_module(journal), handler_cancellation=False, access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock, backlog=_BACKLOG).start()
    await asyncio.Event().wait()


async def _serve_sdk(sock: socket.socket, journal: Journal) -> None:
    import uvicorn  # for this kind only

    config = uvicorn.Config(_sdk_module(journal), log_level="error", access_log=False, backlog=_BACKLOG)
    await uvicorn.Server(config).serve(sockets=[sock])


_SERVE: dict[str, Callable[[socket.socket, Journal], Any]] = {"plain": _serve_plain, "sdk": _serve_sdk}

if __name__ == "__main__":
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(_BACKLOG)
    print(f"listening on {listening.getsockname()[1]}.", flush=True)  # noqa: T201 - for who started us
    asyncio.run(_SERVE[sys.argv[1]](listening, Journal(Path(sys.argv[2]))))
