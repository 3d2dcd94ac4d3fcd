"""A worker's connections to modules: one pool a process, kept alive between calls, with aiohttp.

Nothing of a call stays for the next and nothing of the environment gets into one: no cookies, redirects, proxies,
netrc or answers to 401.
"""

import asyncio
import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

import aiohttp
import httpx
from aiohttp.tracing import Trace

from toolfleet_workers.executors.request import ModuleRequest

# What can go wrong on the way. The class of an error decides nothing but words: see `Progress`.
CONNECTION_ERRORS = (aiohttp.ClientError, UnicodeError)  # the last: no host can be named so

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
    """A pool for the running loop, made at the first request; a new one when the loop has changed.

    `headers` go with every request, beside its own. `with_tls`: whether any module is reached by https.
    """

    def __init__(self, headers: Mapping[str, str], *, with_tls: bool) -> None:
        self._headers = headers
        # As discovery has it. Reading the certificates takes a noticeable part of a worker's start.
        self._ssl = httpx.create_ssl_context() if with_tls else True
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, request: ModuleRequest, progress: Progress) -> aiohttp.ClientResponse:
        """Send the request, once; returns the response when its headers are there. The caller releases it.

        Raises one of `CONNECTION_ERRORS`; `progress` then says whether anything was sent.
        """
        session = self._session
        if session is None or self._loop is not asyncio.get_running_loop():
            session = await self._open()
        _progress.set(progress)
        response = await session.post(request.url, data=request.body, headers=request.headers, allow_redirects=False)
        if not progress.sent:  # calls that are lost would be taken for calls that may be repeated
            response.close()
            raise RuntimeError(f"aiohttp {aiohttp.__version__} takes its connections from elsewhere than a connector.")
        return response

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _open(self) -> aiohttp.ClientSession:
        old, old_loop = self._session, self._loop
        self._loop = asyncio.get_running_loop()
        self._session = session = aiohttp.ClientSession(
            # No limit: how many calls run is decided by the worker's slots, and a call must not wait in two places.
            connector=_Connector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ssl=self._ssl),
            headers=self._headers,
            # The whole exchange has its limit from the executor.
            timeout=aiohttp.ClientTimeout(connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        # The connections of a loop that could still run are its own; those of a closed one are only to be forgotten.
        if old is not None and old_loop is not None and old_loop.is_closed():
            await old.close()
        return session


class _Connector(aiohttp.TCPConnector):
    """Notes that a request is sent when it gets its connection: nothing is written before, and no wait comes between.

    Gives out no connection on which the module has spoken unasked: the next call would take it for its reply.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> aiohttp.connector.Connection:
        for _ in range(_MAX_DIRTY):
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is not None and not connection.protocol.should_close:
                _progress.get().sent = True
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("it closes connections, or sends data, before it is asked anything")


def why_not_connected(exc: BaseException) -> str:
    """The reason in words that name no address: a model reads them."""
    match exc:
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
    return isinstance(exc, (aiohttp.ClientPayloadError, aiohttp.ClientResponseError))


# aiohttp connects in the task of the request; it offers no other way to pass something to the connector.
_progress: ContextVar[Progress] = ContextVar("progress")
