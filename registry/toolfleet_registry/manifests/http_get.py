"""Gets documents over HTTP/1.1 from untrusted servers: one request a connection, no redirects, no proxies.

Thousands of modules are asked in one probe, and httpx takes a millisecond for each request. h11 implements the
protocol.
"""

import asyncio
import contextlib
import errno
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from socket import gaierror
from typing import TYPE_CHECKING, TypedDict

import h11

from toolfleet_registry.headers import NO_HEADERS, ModuleHeaders
from toolfleet_registry.redis.urls import HTTP_PORTS, PlainUrl
from toolfleet_registry.system.lazy_names import LazyModule

if TYPE_CHECKING:
    import httpx
else:
    httpx = LazyModule("httpx")

_HEAD_BYTES = 100 * 1024  # of a status line and its headers
_READ_BYTES = 64 * 1024
_DELAY_SECONDS = 0.25  # before the next address of a host is tried in addition to the one that has not answered yet


class NoAnswer(Exception):
    """No usable answer came; its text says why."""


class NoConnection(NoAnswer):
    """There was no connection in time."""


class HttpAnswer:
    """A server's answer, as far as it was read. `headers` have names in lower case."""

    def __init__(self, protocol: h11.Connection, reader: asyncio.StreamReader) -> None:
        self._protocol = protocol
        self._reader = reader
        self.status = 0
        self.headers: Mapping[str, str] = {}

    @property
    def is_redirect(self) -> bool:
        """Whether it redirects to another URL."""
        return self.status // 100 == 3 and "location" in self.headers  # noqa: PLR2004 - their class

    async def begin(self) -> None:
        """Read the status and the headers. Raises `NoAnswer`."""
        while not isinstance(event := await self._next(), h11.Response):
            pass
        self.status = event.status_code
        headers = dict[str, str]()
        for name, value in event.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self.headers = headers

    async def chunk(self) -> bytes:
        """Return the next piece of the body as it was sent; empty at its end. Raises `NoAnswer`."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _next(self) -> h11.Event:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data and self._protocol.their_state is h11.SEND_RESPONSE:
                    raise NoAnswer("the connection was closed without an answer")
                self._protocol.receive_data(data)
        except (h11.RemoteProtocolError, OSError) as exc:
            raise NoAnswer(_text_of(exc)) from exc
        if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
            raise NoAnswer("the answer is no HTTP/1.1")  # but another protocol's, from here on
        return event


def anywhere(_: str) -> bool:
    """Allow any IP address."""
    return True


@asynccontextmanager
async def requested(
    url: "PlainUrl | httpx.URL",
    *,
    headers: Mapping[str, str],
    connect_seconds: float,
    own: ModuleHeaders = NO_HEADERS,
    allows: Callable[[str], bool] = anywhere,
) -> AsyncGenerator[HttpAnswer]:
    """Yield the answer to a GET, with its body still to be read. User and password of the URL go into a header.

    `own` are the fields of this server, before those of its URL.

    `allows` says of an IP address whether a server there may be asked; nothing is sent to another one.

    There is no limit to the time but that for the connection. Raises `NoAnswer`.
    """
    reader, writer = await _connected(url, connect_seconds)
    try:
        if not allows(str((writer.get_extra_info("peername") or ("",))[0])):
            raise NoAnswer("the fleet does not allow its address (TOOLFLEET_MODULE_NETWORKS)")
        protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        writer.write(_head(protocol, url, headers, own))
        answer = HttpAnswer(protocol, reader)
        await answer.begin()
        yield answer
    finally:
        writer.transport.abort()  # nothing is left to say, and a goodbye in TLS would be waited for
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class _Addresses(TypedDict, total=False):
    happy_eyeballs_delay: float


async def _connected(url: "PlainUrl | httpx.URL", seconds: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if url.scheme not in {"http", "https"} or not url.host:
        raise NoAnswer("its URL is not one of http or https")
    is_tls = url.scheme == "https"
    host, port = url.raw_host.decode("ascii"), url.port or HTTP_PORTS[url.scheme]
    context = trusted_certificates() if is_tls else None
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.open_connection(host, port, ssl=context, **_side_by_side())
    except TimeoutError as exc:
        raise NoConnection(f"no connection within {seconds:g} s") from exc
    except (OSError, UnicodeError) as exc:  # a name that is none is the latter
        raise NoAnswer(_why(exc, host, port)) from exc


def _side_by_side() -> _Addresses:
    """Try a name's addresses at once, nearly (RFC 8305), on asyncio's own loop; uvloop tries them in turn."""
    loop = asyncio.get_running_loop()
    return {"happy_eyeballs_delay": _DELAY_SECONDS} if isinstance(loop, asyncio.BaseEventLoop) else {}


def _head(
    protocol: h11.Connection, url: "PlainUrl | httpx.URL", headers: Mapping[str, str], own: ModuleHeaders
) -> bytes:
    fields = {"host": url.netloc.decode("ascii"), "connection": "close"}
    if url.userinfo and not own.has("authorization"):
        fields["authorization"] = "Basic " + b64encode(f"{url.username}:{url.password}".encode()).decode()
    try:
        request = h11.Request(
            method="GET", target=url.raw_path, headers=[*{**fields, **headers, **own.plain()}.items()]
        )
        return (protocol.send(request) or b"") + (protocol.send(h11.EndOfMessage()) or b"")
    except h11.LocalProtocolError as exc:
        raise NoAnswer(_text_of(exc)) from exc


@cache
def trusted_certificates() -> ssl.SSLContext:
    """Return the context of the connections with TLS."""
    context = httpx.create_ssl_context()  # also what SSL_CERT_FILE names; reads all certificates, which takes 20 ms
    context.set_alpn_protocols(["http/1.1"])
    return context


def _why(exc: Exception, host: str, port: int) -> str:
    """Return why there is no connection: the usual cause in plain words, otherwise the system's message."""
    if isinstance(exc, gaierror):
        return f"the host name {host!r} cannot be resolved"
    if f"[Errno {errno.ECONNREFUSED}]" in str(exc):  # of a host with several addresses the text has them all
        return f"nobody listens at {f'[{host}]' if ':' in host else host}:{port}"
    return _text_of(exc)


def _text_of(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
