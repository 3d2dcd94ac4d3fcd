"""Refuses requests that a foreign website's script has made in somebody's browser."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_gateway.http.bounds.host_check import ANY, host_name
from toolfleet_gateway.http.problems import Problem


class OriginCheck:
    """`Origin`, if there is one, is one of `origins`, or names a host of `hosts`: else 403. Programs send none."""

    def __init__(self, app: ASGIApp, *, origins: Collection[str], hosts: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"origin" and not self._allows(value.decode("latin-1").lower()):
                    raise Problem(403, "wrong_origin", "Requests from this origin are not let in.")
        await self._app(scope, receive, send)

    def _allows(self, origin: str) -> bool:
        if ANY in self._origins or origin.rstrip("/") in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in {"http", "https"} and host_name(parts.netloc) in self._hosts
