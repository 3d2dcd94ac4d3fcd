"""Carries messages between a session and a server's HTTP endpoint: what fails costs one request, and says whether it was sent."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client
from pydantic_core import from_json

from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationAway, AuthorizationRefused
from toolfleet_modules.hosts.mcp.oauth.oauth_transport import OAuthTransport
from toolfleet_modules.hosts.mcp.options import HttpServer
from toolfleet_modules.hosts.mcp.transports.http_errors import (
    BROKEN,
    NOT_SENT,
    REFUSED,
    SESSION_LOST,
    TURNED_AWAY,
    UNAUTHORIZED,
)
from toolfleet_modules.hosts.mcp.transports.message_streams import MessageStreams
from toolfleet_modules.hosts.mcp.transports.standalone_stream import StandaloneStream

_MOST_BYTES = 32 * 2**20  # of an answer, or of one event of a stream
_MOST_ERROR_BYTES = 64 * 2**10
_CONNECT_SECONDS = 10.0
_WRITE_SECONDS = 30.0
_CONNECTIONS = 1000
_SESSION = "mcp-session-id"
_TOO_MANY = 429
_AWAY = 503
_UNSURE = frozenset({408, 409, 425, 499})  # of the client's errors: something may have been begun


@asynccontextmanager
async def http_transport(server: HttpServer) -> AsyncGenerator[MessageStreams]:
    """Give what a session reads and writes. Nothing is sent before it writes."""
    sending: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=_CONNECTIONS))
    if server.authorizer is not None:
        sending = OAuthTransport(sending, server.authorizer)
    standalone = StandaloneStream(GuardedTransport(sending))
    client = httpx2.AsyncClient(
        transport=standalone,
        headers={"Accept-Encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(_WRITE_SECONDS, connect=_CONNECT_SECONDS, read=None),  # a call's caller says how long
        trust_env=False,  # no credentials from elsewhere
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
    ):
        yield MessageStreams(*streams, standalone=standalone)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Answers for a server that fails, with an error of the protocol: else one request would end all of its session."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The server's answer, whole if it is no stream; or an error."""
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.TransportError, httpx2.InvalidURL, AuthorizationAway, AuthorizationRefused) as exc:
            return _unanswered(exc)
        if response.headers.get("content-encoding", "identity") != "identity":
            return await _instead_of(response, _error(BROKEN, "the server's answer is compressed"))
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if response.is_error:
            return await _failure(request, response)
        return response if is_stream or request.method != "POST" else await _whole(request, response)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


def _unanswered(error: Exception) -> httpx2.Response:
    """An error for a request that no answer came to."""
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout() | httpx2.UnsupportedProtocol():
            return _error(NOT_SENT, "the server cannot be reached")
        case AuthorizationAway():
            return _error(NOT_SENT, str(error))
        case AuthorizationRefused():
            return _error(UNAUTHORIZED, str(error))
        case _:
            return _error(BROKEN, "the connection to the server ended")


async def _whole(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """An answer with all of its body, if that is the answer to this request."""
    body = await _read(response, _MOST_BYTES)
    if body is None:
        return _error(BROKEN, "the server's answer broke off, or is too large")
    if response.headers.get("content-type", "").lower().startswith("application/json"):
        asked, answer = _object_in(request.content), _object_in(body)
        if "id" in asked and answer.get("id") != asked["id"]:
            return _error(BROKEN, "the server answered another request")
    return httpx2.Response(response.status_code, headers=response.headers, content=body)


async def _failure(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """An error in the protocol's form, which says whether the server has done anything."""
    status = response.status_code
    body = await _read(response, _MOST_ERROR_BYTES) or b""
    error = _object_in(body).get("error")
    message = str(error.get("message", "")) if isinstance(error, dict) else ""
    if _SESSION in request.headers and (status == HTTPStatus.NOT_FOUND or "session" in message.lower()):
        return _error(SESSION_LOST, "the server knows the session no more")
    retry_after = response.headers.get("retry-after")
    if status == _TOO_MANY or (status == _AWAY and retry_after is not None):
        seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
        return _error(TURNED_AWAY, "the server takes no more now", {"retry_after_seconds": seconds})
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)
    if response.is_client_error and status not in _UNSURE:
        what = "its credentials" if status in {401, 403} else "the request"
        return _error(REFUSED, f"its server refuses {what} (HTTP {status})")
    return _error(BROKEN, f"its server answered with HTTP {status}")


async def _read(response: httpx2.Response, most: int) -> bytes | None:
    """The body; `None` if it breaks off, or has more than so many bytes."""
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > most:
                return None
    except (httpx2.TransportError, httpx2.StreamError):
        return None
    finally:
        await response.aclose()
    return bytes(body)


async def _instead_of(response: httpx2.Response, error: httpx2.Response) -> httpx2.Response:
    await response.aclose()
    return error


def _error(code: int, message: str, data: Mapping[str, Any] | None = None) -> httpx2.Response:
    error = {"code": code, "message": message, **({"data": data} if data is not None else {})}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=json.dumps(body).encode())


def _object_in(data: bytes) -> dict[str, Any]:
    try:
        found = from_json(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
