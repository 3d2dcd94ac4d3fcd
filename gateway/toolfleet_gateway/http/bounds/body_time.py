"""Bounds the time that a request's body takes to arrive."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.http.problems import Problem


class BodyTime:
    """A body that is not complete `seconds` after it was first asked for is 408. How long the answer takes is not its matter."""

    def __init__(self, app: ASGIApp, *, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        give_up_at, is_complete = 0.0, False

        async def timed() -> Message:
            nonlocal give_up_at, is_complete
            if is_complete:
                return await receive()
            give_up_at = give_up_at or asyncio.get_running_loop().time() + self._seconds
            try:
                async with asyncio.timeout_at(give_up_at):
                    message = await receive()
            except TimeoutError:
                detail = f"The body did not arrive within {self._seconds:g} s."
                raise Problem(408, "body_too_slow", detail, retryable=True, closes=True) from None
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, timed, send)
