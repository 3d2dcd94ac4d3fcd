"""The modules of the troubleshooting page: everything that can be wrong with a tool is wrong with one of theirs."""

from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from support.module_server import ModuleServer, Request

OWLS = '''
import asyncio

from toolfleet.sdk import Module

module = Module("owls", description="Owls and where they are.")


@module.tool(permission="guest", effect="read")
async def find(wood: str, most: int = 10) -> list[str]:
    """Find owls in a wood."""
    return [f"tawny owl of {wood}"][:most]


@module.tool(permission="guest", effect="read", timeout_seconds=1)
async def count(wood: str) -> int:
    """Count the owls in a wood, all night long."""
    await asyncio.sleep(60)
    return 7


@module.tool(permission="user", effect="idempotent")
async def ring(owl: str) -> str:
    """Find out what stands on an owl's ring."""
    rings: dict[str, str] = {}
    return rings[owl]


app = module.app
'''


class _HangUp(web.Response):
    """Ends the connection in the place of a reply."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        assert request.transport is not None
        request.transport.abort()
        return await super().prepare(request)


async def _send(request: Request) -> dict[str, Any]:
    return {"success": True, "result": f"sent to {request['arguments'].get('to')}"}


async def _sign(_: Request) -> web.Response:
    return web.Response(status=500, text="out of ink")


async def _weigh(_: Request) -> web.Response:
    return web.Response(text="It weighs 20 g.")


async def _seal(_: Request) -> web.Response:
    return _HangUp()


def letters() -> ModuleServer:
    """A module of six tools, of which one works, and one for admins."""
    module = ModuleServer("letters")
    to = {"name": "to", "type": "string", "description": "Who gets it."}
    module.add("send", _send, version="1.0.0", description="Send a letter.", parameters=[to], effect="once")
    module.add("sign", _sign, description="Sign a letter.", effect="once")
    module.add("weigh", _weigh, description="Weigh a letter.", effect="read")
    module.add("seal", _seal, description="Seal a letter.", effect="once")
    module.add("fold", _send, description="Fold a letter.", required_permission="usr", effect="once")
    module.add("burn", _send, description="Destroy all letters.", required_permission="admin", effect="once")
    return module
