"""Adds to each answer the headers that keep browsers from doing more with it than was meant."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_OWN = frozenset(name for name, _ in _HEADERS)


class SecurityHeaders:
    """What an answer says itself, as an `ETag`'s `Cache-Control`, stays."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                said = _OWN.intersection(name for name, _ in headers)
                message["headers"] = [*headers, *(one for one in _HEADERS if one[0] not in said)]
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)
