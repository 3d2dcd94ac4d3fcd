"""A module whose tools work, nap, fail, turn away and garble: one for each thing that can become of a call."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from support.module_server import ModuleServer, Request


async def echo(request: Request) -> dict[str, Any]:
    return {"success": True, "result": request["arguments"]}


async def nap(request: Request) -> dict[str, Any]:
    await asyncio.sleep(request["arguments"].get("seconds", 1))
    return {"success": True, "result": "awake"}


async def fail(request: Request) -> dict[str, Any]:
    return {"success": False, "error": "I cannot."}


async def turn_away(request: Request) -> web.Response:
    return web.Response(status=503, headers={"Retry-After": "0"}, text="later")


async def hang_up(request: Request) -> web.StreamResponse:
    """Answers half of what it promises: the effect may have happened."""
    return web.Response(status=200, headers={"Content-Type": "application/json"}, text='{"tool_name": ')


class Trickle:
    """A tool that answers a byte a second, for ever; `count` of its answers are under way."""

    def __init__(self) -> None:
        self.count = 0

    async def answer(self, _: Request) -> web.Response:
        return web.Response(body=self._byte_a_second(), content_type="application/json")

    async def _byte_a_second(self) -> AsyncIterator[bytes]:
        self.count += 1
        try:
            while True:
                yield b" "
                await asyncio.sleep(1)
        finally:
            self.count -= 1


def make_module(name: str = "owls") -> ModuleServer:
    module = ModuleServer(name)
    module.add("echo", echo, effect="read")
    module.add("nap", nap, effect="read")
    module.add("nap_once", nap, effect="once")
    module.add("brief_nap", nap, effect="once", timeout_seconds=0.3)
    module.add("fail", fail)
    module.add("fail_once", fail, effect="once")
    module.add("turn_away", turn_away, effect="once")
    module.add("garble", hang_up, effect="once")
    module.add("garble_read", hang_up, effect="read")
    module.add("admin_only", echo, required_permission="admin")
    return module
