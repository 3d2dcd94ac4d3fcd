"""Keeps a worker's connections to modules alive between calls: one pool a process.

Nothing of a call stays for the next and nothing of the environment gets into one: there are no cookies, redirects,
proxies, netrc or answers to 401.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from socket import gaierror

from aiohappyeyeballs import AddrInfoType, start_connection

from toolfleet_registry.contracts.attempts import LeaseOver
from toolfleet_registry.policy.hints import WORDS
from toolfleet_workers.executors.http_client import Connection, Response
from toolfleet_workers.executors.module_client import SendProgress
from toolfleet_workers.executors.reply import Blocked, NotConnected, silent
from toolfleet_workers.executors.request import ModuleRequest, Origin

# A POST on a connection that its server is just closing has an unknown outcome. Servers close idle ones after 2 s
# (gunicorn) or 5 s (uvicorn, node); the rest is room for a slow network and a busy loop.
_KEEPALIVE_SECONDS = 1
_READ_BYTES = 2**16  # at a time

# Long enough for a burst of connections, short enough for a module that moves.
_ADDRESS_SECONDS = 10

# Longer than a module needs that is merely busy, short enough to try again.
CONNECT_SECONDS = 5
# Of a host with several addresses, the next one is tried when this is over: RFC 8305.
_NEXT_ADDRESS_SECONDS = 0.25
# Of the errors of a new connection: the worker has no descriptor, memory, port or route for it, or is not allowed to make it.
_OWN_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
_OWN_TROUBLE = frozenset({*_OWN_LIMITS, errno.ENETDOWN, errno.ENETUNREACH, errno.EACCES, errno.EPERM})


class Pool:
    """Has no limit: how many calls run is decided by the worker's slots, and a call must not wait in two places.

    Connections read into its `buffer`, one after the other: one of their own, as asyncio makes it, costs ten times as much.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.addresses = Addresses()
        self.is_closed = False
        self._all: set[Connection] = set()
        self._idle: dict[Origin, list[Connection]] = {}  # in the order in which they became so
        self._sweeping: asyncio.TimerHandle | None = None
        self._last_is_gone = asyncio.Event()

    def take(self, origin: Origin) -> Connection | None:
        """The connection that was used last, if it is still good. Nothing else will get it."""
        idle = self._idle.get(origin)
        oldest = self.loop.time() - _KEEPALIVE_SECONDS
        while idle:
            connection = idle.pop()
            # What has come unasked, or that the module has closed, must not meet the next request.
            if connection.is_open and connection.idle_since >= oldest and connection.is_quiet():
                return connection
            connection.abort()
        return None

    def idle(self) -> list[Connection]:
        """Return the open connections that wait for another request."""
        return [connection for idle in self._idle.values() for connection in idle if connection.is_open]

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        self.is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._idle.clear()
        for connection in list(self._all):
            connection.abort()
        if self._all:  # their sockets are closed in the loop's next turns
            await self._last_is_gone.wait()

    def add(self, connection: Connection) -> None:
        """Know a connection that has been opened."""
        self._all.add(connection)

    def keep(self, connection: Connection) -> None:
        """Have it wait for another request, for a while."""
        connection.idle_since = self.loop.time()
        self._idle.setdefault(connection.origin, []).append(connection)
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(_KEEPALIVE_SECONDS, self._sweep)

    def forget(self, connection: Connection) -> None:
        """Know no more of a connection that has been closed."""
        self._all.discard(connection)
        if self.is_closed and not self._all:
            self._last_is_gone.set()

    def _sweep(self) -> None:
        """Close what was idle for too long: at the latest after twice the time. One timer for all."""
        oldest = self.loop.time() - _KEEPALIVE_SECONDS
        for connection in self.idle():
            if connection.idle_since <= oldest:
                connection.abort()
        self._idle = {
            origin: still for origin, idle in self._idle.items() if (still := [one for one in idle if one.is_open])
        }
        self._sweeping = self.loop.call_later(_KEEPALIVE_SECONDS, self._sweep) if self._idle else None


class Addresses:
    """The name service's answers for the running loop, by host and port."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], tuple[float, asyncio.Task[Sequence[AddrInfoType]]]] = {}

    async def of(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Return the addresses.

        Raises `OSError`, or `UnicodeError` for an invalid host name. Such an answer is not cached.
        """
        loop = asyncio.get_running_loop()
        since, answer = self._asked.get((host, port), (0.0, None))
        if answer is None or (answer.done() and (_has_failed(answer) or loop.time() > since + _ADDRESS_SECONDS)):
            answer = loop.create_task(_ask(host, port))
            answer.add_done_callback(_has_failed)  # or asyncio logs a failure that has no waiter any more
            self._asked[host, port] = loop.time(), answer
        return await asyncio.shield(answer)  # others may wait for it, too


def _has_failed(answer: asyncio.Task[Sequence[AddrInfoType]]) -> bool:
    return answer.cancelled() or answer.exception() is not None


async def _ask(host: str, port: int) -> Sequence[AddrInfoType]:
    try:  # what is no name needs no name service, and no thread to wait for one
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class HttpClient:
    """Implements `module_client.ModuleClient`: a pool for the running loop, made at the first request; a new one when the loop has changed."""

    def __init__(self) -> None:
        self._ssl: ssl.SSLContext | None = None
        self._pool: Pool | None = None
        self._guards: Mapping[Origin, Callable[[str], bool]] = {}

    def guard(self, guards: Mapping[Origin, Callable[[str], bool]]) -> None:
        """Implements `HttpClientPort.guard`."""
        self._guards = guards

    def trust(self) -> None:
        """Implements `HttpClientPort.trust`."""
        if self._ssl is None:
            self._ssl = _trusting_context()

    async def post(self, request: ModuleRequest, progress: SendProgress) -> Response:
        """Implements `HttpClientPort.post`."""
        pool = self._pool_here()
        connection = pool.take(request.origin) or await self._connect(pool, request)
        progress.sent = True
        try:
            return await _answer(connection, request)
        except LeaseOver:
            progress.sent = False
            raise

    async def probe(self, request: ModuleRequest) -> int:
        """Implements `HttpClientPort.probe`."""
        pool = self._pool_here()
        response = await _answer(await self._connect(pool, request), request)
        response.release()
        return response.status

    async def aclose(self) -> None:
        """Implements `HttpClientPort.aclose`."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.loop is asyncio.get_running_loop():
            await pool.aclose()

    def _allowed(self, origin: Origin, addresses: Sequence[AddrInfoType]) -> Sequence[AddrInfoType]:
        allows = self._guards.get(origin)
        if allows is None:
            return addresses
        if fine := [each for each in addresses if allows(str(each[4][0]))]:
            return fine
        raise NotConnected("the fleet does not allow its address")

    def _pool_here(self) -> Pool:
        pool, loop = self._pool, asyncio.get_running_loop()
        if pool is None or pool.loop is not loop:
            # The connections of a loop that could still run are its own; those of a closed one are only to be forgotten.
            pool = self._pool = Pool(loop)
        return pool

    async def _connect(self, pool: Pool, request: ModuleRequest) -> Connection:
        origin, seconds = request.origin, min(CONNECT_SECONDS, request.connect_seconds)
        try:
            async with asyncio.timeout(seconds):
                addresses = self._allowed(origin, await pool.addresses.of(origin.host, origin.port))
                sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS, interleave=1)
                _, connection = await pool.loop.create_connection(
                    lambda: Connection(origin, pool, pool.loop),
                    sock=sock,
                    ssl=self._ssl if origin.is_tls else None,
                    server_hostname=origin.host.rstrip(".") if origin.is_tls else None,
                )
        except (OSError, UnicodeError) as exc:
            reason = _why(exc, seconds)
            raise (Blocked(str(reason), reason.why) if _is_own(exc) else reason) from exc
        if pool.is_closed:
            connection.abort()
            raise NotConnected("the worker is stopping")
        if not connection.is_open:
            raise NotConnected("it closes connections, or sends data, before it is asked anything")
        return connection


async def _answer(connection: Connection, request: ModuleRequest) -> Response:
    try:
        connection.send(request.head(), request.body, request.lease)
        while (response := connection.response()) is None:
            await connection.more()
    except BaseException:  # also without a waiter
        connection.release()
        raise
    return response


def _trusting_context() -> ssl.SSLContext:
    """As discovery has it. Reading the certificates takes a noticeable part of a worker's start."""
    from httpx import create_ssl_context  # noqa: PLC0415 - and so does this

    return create_ssl_context()


def _is_own(exc: OSError | UnicodeError) -> bool:
    """Return whether the reason is in this worker, independent of the module."""
    return isinstance(exc, gaierror | UnicodeError) or exc.errno in _OWN_TROUBLE


def _why(exc: OSError | UnicodeError, seconds: float) -> NotConnected:
    """The reason in words that name no address: a model reads them. `seconds`: how long a connection was waited for."""
    match exc:
        case gaierror() | UnicodeError():  # the last: no host can be named so
            return NotConnected(WORDS["unresolved"], "unresolved")
        case ssl.SSLError():
            is_refused = isinstance(exc, ssl.SSLCertVerificationError)
            return NotConnected("its TLS certificate is not trusted" if is_refused else "the TLS handshake failed")
        case TimeoutError(errno=None):
            return silent(seconds)
        case OSError(errno=errno.ECONNREFUSED):
            return NotConnected(WORDS["refused"], "refused")
        case OSError(errno=int(number)):
            return NotConnected(os.strerror(number))
        case _:  # it was closed in the handshake, or its addresses fail for several reasons
            return NotConnected("no connection could be made")
