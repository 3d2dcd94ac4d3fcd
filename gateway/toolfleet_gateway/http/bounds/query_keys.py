"""Refuses requests with a key or a token in the query, where proxies and logs would keep it."""

from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_gateway.auth.credentials import read_credential


class QueryKeys:
    """A query with a secret is 400, also where nobody is asked who they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] == "http" and scope["query_string"]:
            read_credential((), scope["query_string"])
        await self._app(scope, receive, send)
