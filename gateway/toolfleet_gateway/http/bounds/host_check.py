"""Refuses requests for a `Host` that is not this gateway's, as after a rebinding of a name in somebody's browser."""

import re
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_gateway.http.problems import Problem, invalid_request

ANY = "*"

_HOST = re.compile(r"([^\s:/?#@\[\]]*|\[[0-9a-f:.]+\])(?::[0-9]*)?")  # RFC 3986, 3.2.2


class HostCheck:
    """`Host` names one of `hosts`, with whatever port: else 421. HTTP/1.1 asks for one; without it 400.

    `paths` are answered whatever the name is: who asks for health has none.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], paths: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] == "http":
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), None)
        if host is None:
            raise invalid_request("The request has no Host.")
        if ANY in self._hosts or scope["path"] in self._paths:
            return
        if host_name(host.decode("latin-1")) not in self._hosts:
            detail = "This gateway does not answer to the Host of the request."
            raise Problem(421, "wrong_host", detail, hint="TOOLFLEET_GATEWAY_HOSTS lists the names that it answers to.")


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port, in lower case; an IPv6 address keeps its brackets. Any other form is no name."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""
