"""Sends what the SDK asks of authorization servers: to safe addresses only, within a time, and no long answers.

Credentials are sent over https, and to this machine only for a server that is on it as well.
"""

import asyncio
from ipaddress import ip_address
from types import TracebackType
from typing import Self

import httpx2

from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationAway, AuthorizationRefused


def check_address(url: str | httpx2.URL, server: str | httpx2.URL) -> None:
    """Raise `AuthorizationRefused` for an address that `server`, or what it names, must not send a host to."""
    try:
        asked, near = httpx2.URL(url), is_here(httpx2.URL(server))
    except (httpx2.InvalidURL, TypeError):
        raise AuthorizationRefused("it names an address that is no URL") from None
    shown = f"{asked.scheme}://{asked.host}"[:200]
    if asked.userinfo or asked.scheme not in {"http", "https"} or not asked.host:
        raise AuthorizationRefused(f"it names an address that nothing is sent to: {shown}")
    if is_here(asked):
        if not near:
            raise AuthorizationRefused(f"it names an address on this machine: {shown}")
    elif asked.scheme != "https":
        raise AuthorizationRefused(f"it names an address without https: {shown}")


def is_same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Return whether data for one URL may be sent to the other."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def is_here(url: httpx2.URL) -> bool:
    """Return whether the URL is on this machine."""
    if url.host == "localhost" or url.host.endswith(".localhost"):
        return True
    try:
        address = ip_address(url.host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


_MOST_BYTES = 256 * 2**10  # of an answer: metadata and tokens have some hundreds
_SECONDS = 15.0  # for one answer
_TOO_MANY = 429


class AuthorizationClient:
    """A client of the authorization server of `server`, closed after use. `name` is the server's name in messages."""

    def __init__(self, server: str, *, name: str = "its authorization server") -> None:
        self._server, self._name = server, name
        self._client = httpx2.AsyncClient(
            transport=_ShortAnswers(httpx2.AsyncHTTPTransport(), name),
            timeout=httpx2.Timeout(_SECONDS),
            trust_env=False,  # no credentials from elsewhere
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, whole. No redirect is followed. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        check_address(request.url, self._server)
        request.headers["Accept-Encoding"] = "identity"
        request.headers.setdefault("Accept", "application/json")
        try:
            async with asyncio.timeout(_SECONDS):
                response = await self._client.send(request, follow_redirects=False)
        except (httpx2.TransportError, httpx2.StreamError, TimeoutError):
            raise AuthorizationAway(f"{self._name} cannot be reached") from None
        except httpx2.InvalidURL:
            raise AuthorizationRefused("it names an address that is no URL") from None
        if response.is_server_error or response.status_code == _TOO_MANY:
            raise AuthorizationAway(f"{self._name} answers with HTTP {response.status_code}")
        return response


class _ShortAnswers(httpx2.AsyncBaseTransport):
    """Reads answers as far as they may go."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, name: str) -> None:
        self._inner, self._name = inner, name

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer with its body. Raises `AuthorizationRefused`."""
        response = await self._inner.handle_async_request(request)
        body = bytearray()
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise AuthorizationRefused(f"{self._name} answers with what is compressed")
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise AuthorizationRefused(f"{self._name} answers with more than {_MOST_BYTES} bytes")
        finally:
            await response.aclose()
        return httpx2.Response(response.status_code, headers=response.headers, content=bytes(body))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()
