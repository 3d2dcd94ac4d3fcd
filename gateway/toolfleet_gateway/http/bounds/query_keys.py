"""Refuses requests with a key or a token in the query, where proxies and logs would keep it."""

from urllib.parse import unquote_plus

from starlette.types import ASGIApp, Receive, Scope, Send

from toolfleet_gateway.http.problems import Problem

_SECRET = frozenset(
    {
        "access_token",
        "api_key",
        "apikey",
        "api-key",
        "authorization",
        "bearer",
        "key",
        "password",
        "secret",
        "token",
        "x-api-key",
    }
)
_KEY_BEGINS = "tfk_"


class QueryKeys:
    """A query with a secret, by its name or its look, is 400. The key should be changed: somebody may have logged it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] == "http" and scope["query_string"] and _has_secret(scope["query_string"].decode("latin-1")):
            raise Problem(
                400,
                "key_in_query",
                "A key or a token does not belong into a URL: send it as Authorization: Bearer.",
                hint="Change this key: proxies and logs may have kept it.",
            )
        await self._app(scope, receive, send)


def _has_secret(query: str) -> bool:
    for field in query.split("&"):
        name, _, value = field.partition("=")
        if unquote_plus(name).strip().lower() in _SECRET or unquote_plus(value).strip().startswith(_KEY_BEGINS):
            return True
    return False
