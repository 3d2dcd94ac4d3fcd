"""A worker's connections to modules: one pool a process, kept alive between calls, with httpx's transport API.

The transport is used without httpx's client around it: a client would look at redirects, keep cookies of one user's
call for the next, read proxies from the environment and answer 401, none of which may happen to a tool call.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
import httpx
from aiohttp.tracing import Trace
from httpx_aiohttp import AiohttpTransport

# What can go wrong on the way, by whoever reports it: the transport translates some of aiohttp's errors, and wrongly:
# a connection lost after sending comes out as httpx.ConnectTimeout. So the class of an error decides nothing but words.
CONNECTION_ERRORS = (httpx.HTTPError, aiohttp.ClientError, UnicodeError)  # the last: no host can be named so

# Longer than a module needs that is merely busy, short enough to try again.
CONNECT_SECONDS = 5
# A POST on a connection that its server is just closing has an unknown outcome. Servers close idle ones after 2 s
# (gunicorn) or 5 s (uvicorn, node); the rest is room for a slow network and a busy loop.
_KEEPALIVE_SECONDS = 1
_MAX_DIRTY = 10  # pooled connections of one module that are thrown away for one call


@dataclass(slots=True)
class Progress:
    """How far one request got. While `sent` is false, the module cannot have seen any of it."""

    sent: bool = False


class Connections:
    """A pool for the running loop, made at the first request; a new one when the loop has changed."""

    def __init__(self) -> None:
        self._ssl = httpx.create_ssl_context()  # as discovery has it; reading the certificates takes a while
        self._transport: AiohttpTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def exchange(self, request: httpx.Request, progress: Progress) -> AsyncGenerator[httpx.Response]:
        """Send the request, once; yields the response when its headers are there, and closes it at the end.

        Raises one of `CONNECTION_ERRORS`; `progress` then says whether anything was sent.
        """
        transport = await self._pool()
        _progress.set(progress)
        request.extensions["timeout"] = {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS}
        response = await transport.handle_async_request(request)
        try:
            yield response
        finally:
            with contextlib.suppress(*CONNECTION_ERRORS):  # by now the response is read, or given up
                await response.aclose()

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _pool(self) -> AiohttpTransport:
        loop = asyncio.get_running_loop()
        if self._transport is not None and self._loop is loop:
            return self._transport
        old, old_loop = self._transport, self._loop
        self._transport, self._loop = AiohttpTransport(verify=self._ssl, client=self._open_session), loop
        # The connections of a loop that could still run are its own; those of a closed one are only to be forgotten.
        if old is not None and old_loop is not None and old_loop.is_closed():
            await old.aclose()
        return self._transport

    def _open_session(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        return aiohttp.ClientSession(
            # No limit: how many calls run is decided by the worker's slots, and a call must not wait in two places.
            connector=_Connector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ssl=self._ssl),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
            trust_env=False,
        )


class _Connector(aiohttp.TCPConnector):
    """Gives out no connection on which the module has spoken unasked: the next call would take it for its reply."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> aiohttp.connector.Connection:
        for _ in range(_MAX_DIRTY):
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("it closes connections, or sends data, before it is asked anything")


def origin(exc: BaseException) -> BaseException:
    """The error as aiohttp raised it."""
    return exc.__cause__ or exc if isinstance(exc, httpx.HTTPError) else exc


def why_not_connected(exc: BaseException) -> str:
    """The reason in words that name no address: a model reads them."""
    match origin(exc):
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return "its TLS certificate is not trusted"
        case aiohttp.ClientSSLError():
            return "the TLS handshake failed"
        case aiohttp.ServerTimeoutError():
            return f"no connection within {CONNECT_SECONDS}s"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case other:
            return str(other)


def is_broken_reply(exc: BaseException) -> bool:
    """Whether the module replied, but not with an HTTP response from start to end."""
    return isinstance(origin(exc), (aiohttp.ClientPayloadError, aiohttp.ClientResponseError))


async def _note_sent(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    """Called by aiohttp when it is about to write the request, and not before there is a connection."""
    del session, context, params
    _progress.get().sent = True


# aiohttp runs the note in the task of the request; the transport offers no other way to pass something to it.
_progress: ContextVar[Progress] = ContextVar("progress")
