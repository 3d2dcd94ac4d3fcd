"""Refuses requests whose headers are repeated or contradict each other, so that nobody reads them in two ways."""

from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_gateway.http.problems import invalid_request

_ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"transfer-encoding",
        b"x-api-key",
    }
)
_CONTRADICTORY = (frozenset({b"content-length", b"transfer-encoding"}), frozenset({b"authorization", b"x-api-key"}))


class HeaderRules:
    """Each of certain headers comes once, and some only without the other: else 400."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] == "http":
            check_headers(scope["headers"])
        await self._app(scope, receive, send)


def check_headers(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise `Problem` (400) for headers that are repeated, contradictory or not printable."""
    seen = set[bytes]()
    for name, _ in headers:
        if name in _ONCE:
            if name in seen:
                raise invalid_request(f"The header {name.decode()!r} comes twice.")
            seen.add(name)
    for pair in _CONTRADICTORY:
        if pair <= seen:
            one, other = sorted(name.decode() for name in pair)
            raise invalid_request(f"The headers {one!r} and {other!r} contradict each other.")
