"""Sends requests to a server with their token, and once more with another where it wants that."""

import httpx2

from toolfleet_modules.hosts.mcp.oauth.authorizer import Authorizer
from toolfleet_modules.hosts.mcp.oauth.challenge import Challenge
from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationRefused
from toolfleet_modules.hosts.mcp.oauth.safe_addresses import is_same_origin

_TOKENS = 4  # for one request: the one that there is, another process's, one that is renewed, and one for more
_RENEWALS = 2  # of these may come of refresh tokens


class OAuthTransport(httpx2.AsyncBaseTransport):
    """Requests to other origins than the server's get no token."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, authorizer: Authorizer) -> None:
        self._inner, self._authorizer = inner, authorizer
        self._server = httpx2.URL(authorizer.options.url)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The server's answer. Raises `AuthorizationRefused` and `AuthorizationAway`: the server has done nothing then."""
        if not is_same_origin(request.url, self._server):
            return await self._inner.handle_async_request(request)
        token = await self._authorizer.token()
        for number in range(_TOKENS):
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            response = await self._inner.handle_async_request(request)
            challenge = Challenge.of(response)
            if challenge is None:
                return response
            await response.aclose()
            if number + 1 < _TOKENS:
                token = await self._authorizer.renewed(token, challenge, may_refresh=number < _RENEWALS)
        raise AuthorizationRefused("its server refuses the tokens that its authorization server gives")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()
