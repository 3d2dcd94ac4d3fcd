"""Refuses requests that are meant for another process: one that was at this address before, and remembers what this one cannot know."""

from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

REPLICA_HEADER = "Toolfleet-Replica"

_FIELD = REPLICA_HEADER.lower().encode()


class AddresseeCheck:
    """ASGI middleware. `own` says by which id this process is known to the fleet; "" if by none, and all is for it."""

    def __init__(self, app: ASGIApp, own: Callable[[], str]) -> None:
        self._app, self._own = app, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 409 and the id of this process: nothing was done."""
        if scope["type"] == "http" and (own := self._own()):
            meant = next((value for name, value in scope["headers"] if name == _FIELD), None)
            if meant is not None and meant != own.encode():
                refusal = JSONResponse({"detail": "Another process serves here by now."}, 409, {REPLICA_HEADER: own})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
