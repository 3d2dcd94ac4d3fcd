"""Carries messages between a session and a server's HTTP endpoint: what fails costs one request, and says whether it was sent."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from opentelemetry.trace import get_current_span
from pydantic_core import to_json

from toolfleet_modules.hosts.mcp.exchanges import (
    Lost,
    Malformed,
    NotTaken,
    Refused,
    SentRequests,
    StatusFailed,
    Unanswered,
    answer_to,
    is_answer,
    outcome_of,
    read_json,
    request_id,
    words_of,
)
from toolfleet_modules.hosts.mcp.oauth_flow import AuthorizationAway, AuthorizationRefused
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer, Challenge, OAuthTransport, is_same_origin
from toolfleet_modules.hosts.mcp.transport import MessageStreams, StandaloneStream, describe_call, note_result
from toolfleet_registry.contracts.attempts import parse_retry_after

_MOST_BYTES = 32 * 2**20  # of an answer, or of one event of a stream
_MOST_ERROR_BYTES = 64 * 2**10
_CONNECT_SECONDS = 10.0
_WRITE_SECONDS = 30.0
_CONNECTIONS = 1000
_SESSION = "mcp-session-id"
_KEPT = frozenset({_SESSION})  # header fields of an answer that the SDK reads
_JSON = {"content-type": "application/json"}
_REDIRECTS = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
_MOST_REDIRECTS = 3
_NOT_TAKEN = frozenset({408, 425, 429})  # as workers read them of modules; 503 with `Retry-After`, too


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server's Streamable HTTP endpoint. `headers` are sent with each request, and a token of the `authorizer`, if there is one."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    authorizer: Authorizer | None = None


@asynccontextmanager
async def http_transport(server: HttpServer) -> AsyncGenerator[MessageStreams]:
    """Give what a session reads and writes. Nothing is sent before it writes."""
    sending: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=_CONNECTIONS))
    if server.authorizer is not None:
        sending = OAuthTransport(sending, server.authorizer)
    requests = SentRequests()
    standalone = StandaloneStream(GuardedTransport(sending, requests))
    client = httpx2.AsyncClient(
        transport=standalone,
        headers={"Accept-Encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(_WRITE_SECONDS, connect=_CONNECT_SECONDS, read=None),  # a call's caller says how long
        trust_env=False,  # no credentials from elsewhere
        max_redirects=0,  # the transport follows those that it may
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
    ):
        yield MessageStreams(*streams, requests, standalone=standalone)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """A transport that gives the SDK one answer of the protocol for each request: the server's, or an error instead of an invalid one.

    The fate of a request is noted in `requests`, so that it does not have to be read out of that error.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, requests: SentRequests) -> None:
        self._inner, self._requests = inner, requests

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the server's answer, whole if it is no stream; or an error."""
        identifier = _id_of(asked := _message_in(request))
        describe_call(asked, request.headers)
        try:
            response = await self._sent(request)
        except (httpx2.TransportError, httpx2.InvalidURL, AuthorizationAway, AuthorizationRefused) as exc:
            self._requests.is_doubtful = True
            return self._ended(identifier, _unanswered(exc))
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._ended(identifier, Lost("its server's answer is compressed"))
        if is_stream and response.is_success:
            response.request = request
            events = _Events(response, lambda data: self._screened(identifier, data))
            return httpx2.Response(response.status_code, headers=response.headers, stream=events)
        if identifier is None:
            return response
        body = await _read(response, _MOST_BYTES if response.is_success else _MOST_ERROR_BYTES)
        if response.is_success:
            return self._whole(identifier, response, body)
        return self._ended(identifier, self._failure(identifier, request, response, body or b""))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer, after redirects within the server's origin that keep the method. Raises `httpx2.TransportError`."""
        for _ in range(_MOST_REDIRECTS):
            response = await self._inner.handle_async_request(request)
            target = _redirect(request, response)
            if target is None or response.status_code not in _REDIRECTS or not is_same_origin(target, request.url):
                return response
            await response.aclose()
            request = httpx2.Request(
                request.method, target, headers=request.headers, stream=request.stream, extensions=request.extensions
            )
        return await self._inner.handle_async_request(request)

    def _ended(self, identifier: types.RequestId | None, answer: MCPError | dict[str, Any]) -> httpx2.Response:
        """Note how a request has ended, and return an answer that has the SDK end it."""
        said = self._requests.settle(identifier or 0, answer)
        status = HTTPStatus.OK if isinstance(answer, dict) else HTTPStatus.BAD_GATEWAY
        return httpx2.Response(status, headers=_JSON, content=to_json(said))

    def _whole(self, identifier: types.RequestId, response: httpx2.Response, body: bytes | None) -> httpx2.Response:
        """Return an answer with all of its body, if that answers this request."""
        if body is None:
            return self._ended(identifier, Lost("its server's answer broke off, or is too large"))
        screened = self._screened(identifier, body)
        if screened is None:
            return self._ended(identifier, Lost("its server answered another request"))
        headers = {name: value for name, value in response.headers.items() if name in _KEPT}
        return httpx2.Response(HTTPStatus.OK, headers={**headers, **_JSON}, content=screened)

    def _screened(self, identifier: types.RequestId | None, data: bytes) -> bytes | None:
        """Return a message as the SDK may read it, and None for the answer to another request.

        An invalid message ends the request: no other answer can follow. `identifier` is None on streams of no request.
        """
        try:
            found, is_plain = read_json(data)
        except ValueError:
            found, is_plain = words_of(data) or "it is empty", False
        if isinstance(found, dict) and not is_answer(found):
            return data if is_plain else to_json(found)
        known = self._requests.known_id(found) if identifier is None and isinstance(found, dict) else identifier
        if known is None:
            return None
        if not isinstance(found, dict | list):
            return to_json(self._requests.settle(known, Malformed(words_of(found))))
        answer = answer_to(known, found, is_alone=True)
        if answer is None:
            return None
        note_result(get_current_span(), outcome := outcome_of(answer))
        said = self._requests.settle(known, outcome)
        is_same = is_plain and answer is found and answer == said and type(answer["id"]) is type(known)
        return data if is_same else to_json(said)

    def _failure(
        self, identifier: types.RequestId, request: httpx2.Request, response: httpx2.Response, body: bytes
    ) -> MCPError | dict[str, Any]:
        """Return the error for an HTTP status, or the result that stands in the answer all the same. Only the documented statuses say that the server has not started."""
        status, words = response.status_code, words_of(_found_in(body), response.headers.get("content-type", ""))
        retry_after = response.headers.get("retry-after")
        challenge = Challenge.of(response)
        if challenge is not None:
            return Refused(f"its server refuses its credentials (HTTP {status}{': ' * bool(words)}{words})")
        if status in _NOT_TAKEN or (status == HTTPStatus.SERVICE_UNAVAILABLE and retry_after is not None):
            return NotTaken(
                f"its server takes no more now (HTTP {status})", parse_retry_after(retry_after), is_there=True
            )
        self._requests.is_doubtful = True
        is_session_gone = status == HTTPStatus.NOT_FOUND and _SESSION in request.headers
        answer = answer_to(identifier, _found_in(body), is_alone=not is_session_gone)
        outcome = None if answer is None else outcome_of(answer)
        if isinstance(outcome, MCPError) and not isinstance(outcome, Unanswered):
            return outcome
        if isinstance(outcome, dict) and request_id((answer or {}).get("id")) == identifier:
            return outcome
        if is_session_gone:
            self._requests.on_lost()
            return Lost(f"its server knows the session no more (HTTP 404){': ' * bool(words)}{words}")
        target = _redirect(request, response)
        return StatusFailed(status, words if target is None else f"it is at {_shown(target)}, which is not followed")


class _Events(httpx2.AsyncByteStream):
    """The events of a stream, each with its data as `screen` gives them; without those that it leaves out."""

    def __init__(self, response: httpx2.Response, screen: Callable[[bytes], bytes | None]) -> None:
        self._response, self._screen = response, screen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in httpx2.EventSource(self._response, max_event_size=_MOST_BYTES):
            data: bytes | None = event.data.encode()
            if data and event.event == "message":
                data = self._screen(data)
            if data is None:
                continue
            fields = {"event": event.event, "id": event.id, "retry": event.retry}
            head = "".join(f"{name}: {value}\n" for name, value in fields.items() if value not in {"", None})
            yield head.encode() + b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"

    async def aclose(self) -> None:
        """Close the connection."""
        await self._response.aclose()


def _redirect(request: httpx2.Request, response: httpx2.Response) -> httpx2.URL | None:
    """Return the address that a redirect points to."""
    location = response.headers.get("location")
    if location is None or not response.has_redirect_location:
        return None
    try:
        return request.url.join(location)
    except httpx2.InvalidURL:
        return None


def _shown(url: httpx2.URL) -> str:
    """Return a URL without the parts that may be a credential."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def _unanswered(error: Exception) -> Unanswered:
    """Return why a request has no answer."""
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout() | httpx2.UnsupportedProtocol():
            return NotTaken("it cannot be reached")
        case AuthorizationAway():
            return NotTaken(str(error))
        case AuthorizationRefused():
            return Refused(str(error))
        case _:
            return Lost("the connection to its server ended in the middle")


def _message_in(request: httpx2.Request) -> dict[str, Any]:
    """Return the message that a POST carries."""
    sent = _found_in(request.content) if request.method == "POST" else None
    return sent if isinstance(sent, dict) else {}


def _id_of(message: dict[str, Any]) -> types.RequestId | None:
    """Return the id of a request; `None` for notifications, answers, streams and the session's end."""
    return request_id(message.get("id")) if "method" in message else None


def _found_in(body: bytes) -> object:
    try:
        return read_json(body)[0]
    except ValueError:
        return body


async def _read(response: httpx2.Response, most: int) -> bytes | None:
    """Return the body; `None` if it breaks off, or is larger than `most` bytes."""
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
