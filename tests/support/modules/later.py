"""A module that wants to be asked again after some seconds, and notes by a clock that nobody sets when it is."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from support.module_server import ModuleServer, Request, serve
from toolfleet import ToolCall

LATER_SECONDS = 3
LATER = ToolCall(tool_name="owls.later")


@contextmanager
def later_module() -> Generator[tuple[ModuleServer, list[float]]]:
    """The module `owls`, and the moments at which `owls.later` was asked for; it does what it is asked for the second time."""
    asked_at = list[float]()

    async def later(_: Request) -> web.Response:
        asked_at.append(time.monotonic())
        if len(asked_at) == 1:
            return web.Response(status=503, headers={"Retry-After": str(LATER_SECONDS)}, text="later")
        return web.json_response({"tool_name": "owls.later", "success": True, "result": "now"})

    module = ModuleServer("owls")
    module.add("later", later, effect="once")
    with serve(module):
        yield module, asked_at
