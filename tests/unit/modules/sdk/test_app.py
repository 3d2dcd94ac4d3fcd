"""The layers around a module's routes."""

from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet.sdk import Module

PATHS = list[str]()


class Noted:
    """Middleware that notes the paths that it sees."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            PATHS.append(scope["path"])
        await self._app(scope, receive, send)


async def test_middleware_that_an_author_adds_sees_calls_as_all_other_requests() -> None:
    """Calls go past Starlette's own layers only where there are no others."""
    module = Module("owls")

    @module.tool
    async def hoot() -> str:
        """Hoot."""
        return "hoo"

    module.app.add_middleware(Noted)
    async with module.client() as client:
        reply = await client.call("owls.hoot")

    assert reply.result == "hoo"
    assert PATHS == ["/execute"]
