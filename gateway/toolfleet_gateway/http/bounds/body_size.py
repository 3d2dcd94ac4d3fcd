"""Bounds the bytes of a request's body: by what it says of itself, and by what is read."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.http.problems import Problem

_MOST_DIGITS = 19


class BodySize:
    """At most `most` bytes of body reach the app; more is 413, as soon as that is known."""

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length" and (len(value) > _MOST_DIGITS or int(value) > self._most):
                raise self._too_large()
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        await self._app(scope, bounded, send)

    def _too_large(self) -> Problem:
        return Problem(413, "body_too_large", f"The body is larger than {self._most} bytes.")
