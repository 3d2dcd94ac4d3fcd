"""Posts requests to modules over kept connections: an HTTP/1.1 client behind one `post`.

Nothing of a call stays for the next and nothing of the environment gets into one: there are no cookies, redirects,
proxies, netrc or answers to 401.
"""

import asyncio
import errno
import os
import select
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from socket import gaierror
from typing import cast

from aiohappyeyeballs import AddrInfoType, start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from toolfleet_registry.contracts.attempts import UNBOUNDED, Lease, LeaseOver
from toolfleet_registry.policy.hints import WORDS
from toolfleet_registry.system import machine_clock
from toolfleet_workers.executors.module_client import SendProgress
from toolfleet_workers.executors.reply import Blocked, ConnectionLost, NoReply, NotConnected, ReplyBroken, silent
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

_MAX_HEADER_BYTES = 2**16  # with what follows the body

_SEPARATORS_BYTES = len(b": \r\n")

# Reading a member of `HTTPStatus` costs Python calls each time.
_CONTINUE, _SWITCHING, _OK = HTTPStatus.CONTINUE, HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.OK

_PLAIN_JSON = b"application/json"

_SPENT = HttpResponseParser(object())  # in place of one that refers to its response, for ever

# Of a request: what is larger is written in parts, each when the system has taken the one before, as it does with so much
# at once. Other calls get their turn between two, and after a pause of this process what it still has of a request stays here.
_PART_BYTES = 2**16

# Of an unread body: the module has to wait with more.
_MAX_UNREAD_BYTES = 2**17


class PlainHead:
    """The head of a server's last plain reply, cut where the digits of its body's length were.

    The parser has read these bytes, and reads the same bytes the same way. So a reply that has them, and comes whole, needs
    no parser; any other reply does.
    """

    __slots__ = ("_after", "_before", "_rest_bytes", "_start", "fields")

    def __init__(self, head: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Cut the head, which says these `fields`; it keeps all but the length."""
        digits = fields[b"content-length"]
        self._start = start = head.index(digits, head.lower().rindex(b"\ncontent-length:"))
        self._before, self._after = head[:start], head[start + len(digits) :]
        self._rest_bytes = len(self._after)
        self.fields = {name: value for name, value in fields.items() if name != b"content-length"}

    def body_in(self, data: bytes) -> bytes | None:
        """Return the body of a whole response with this head, and with a length of its own; `None` of anything else."""
        start = self._start
        end = data.find(b"\r", start)
        body = data[end + self._rest_bytes :]
        is_such = data[start:end] == b"%d" % len(body) and data.startswith(self._before)
        return body if is_such and data.startswith(self._after, end) else None


class Response:
    """One response. `status` and the fields of its header are there when `has_head` is, the body when `is_whole` is.

    It `keeps_connection` if another request may follow. Of its body `unread_bytes` wait to be read. With `head` it is a
    whole one of that head, and `plain` is its body.
    """

    __slots__ = (
        "_body",
        "_ends_with_connection",
        "_fields",
        "_fields_bytes",
        "_is_in_fields",
        "_parser",
        "_source",
        "_unparsed_bytes",
        "has_head",
        "is_whole",
        "keeps_connection",
        "plain",
        "status",
        "unread_bytes",
    )
    plain: bytes | None
    status: int
    _body: list[bytes]
    _fields: dict[bytes, bytes]  # by name in lower case; without the length, if the body is there

    def __init__(self, source: "Connection", head: PlainHead | None = None, body: bytes = b"") -> None:
        self.unread_bytes = 0
        self._source = source
        if head is not None:
            self.status, self.plain = _OK, body
            self.has_head = self.is_whole = self.keeps_connection = True
            self._body = [body]
            self._fields = head.fields
            return
        self.status, self.plain = 0, None
        self.has_head = self.is_whole = self.keeps_connection = False
        self._body = []
        self._ends_with_connection = False  # as it has no length
        self._fields = {}
        self._fields_bytes = 0
        self._is_in_fields = True  # of which the parser keeps what has no end yet
        self._unparsed_bytes = 0  # that it may have kept
        self._parser = HttpResponseParser(self)
        # What simple servers send, and what cannot be taken for anything else: folded fields and control characters in
        # them, lines without a carriage return, blanks after a chunk's length.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    def field(self, name: str) -> str | None:
        """Implements `ModuleResponse.field`."""
        value = self._fields.get(name.encode())
        return None if value is None else value.decode(errors="replace")

    async def read_chunk(self) -> bytes:
        """Implements `ModuleResponse.read_chunk`."""
        while not self._body and not self.is_whole:
            await self._source.more()
        chunk = b"".join(self._body)
        self._body.clear()
        self.unread_bytes = 0
        return chunk

    def release(self) -> None:
        """Implements `ModuleResponse.release`."""
        self._source.release()

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what was sent next. Raises `ReplyBroken`."""
        if self._is_in_fields and self._unparsed_bytes > _MAX_HEADER_BYTES:
            raise ReplyBroken
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self.is_whole:
                raise ReplyBroken from None
            self.keeps_connection = False  # what is left over must not become the next call's reply
        if self.is_whole:
            self._parser = _SPENT

    def plain_head(self, data: bytes) -> PlainHead | None:
        """Return the head of a response that has come whole, in `data`, as nearly all do: a success, plain JSON, of a stated length."""
        fields = self._fields
        is_plain = fields.get(b"content-type") == _PLAIN_JSON and b"content-encoding" not in fields
        if not (self.keeps_connection and self.status == _OK and is_plain and b"content-length" in fields):
            return None
        body = b"".join(self._body)
        head = PlainHead(data[: len(data) - len(body)], fields)
        return head if head.body_in(data) == body else None

    def end(self) -> None:
        """End the response: a body without a length is whole then."""
        self._parser = _SPENT
        self.is_whole = self.is_whole or self._ends_with_connection

    # What the parser calls. An error that is raised here stops it.

    def on_message_begin(self) -> None:
        """Start a response; raises for an unrequested one after it."""
        if self.is_whole:
            raise ReplyBroken

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a field of the header. Fields that follow the body are not needed."""
        self._fields_bytes += _SEPARATORS_BYTES + len(name) + len(value)
        # Of what the leniency lets pass, these could make two readers understand two things.
        if self._fields_bytes > _MAX_HEADER_BYTES or b"\0" in value or name[-1:].isspace():
            raise ReplyBroken
        if not self.has_head:
            name, fields = name.lower(), self._fields
            fields[name] = b"%b, %b" % (fields[name], value.strip()) if name in fields else value.strip()

    def on_headers_complete(self) -> None:
        """Note the end of the header, or of one that announces another header."""
        status = self._parser.get_status_code()
        if status == _SWITCHING or status < _CONTINUE:
            raise ReplyBroken
        if status < _OK:
            return
        coding = self._fields.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise ReplyBroken
        self.status = status
        self.has_head = True
        self._is_in_fields = False
        self._ends_with_connection = coding is None and b"content-length" not in self._fields

    def on_body(self, part: bytes) -> None:
        """Some of the body."""
        if not self.has_head:  # an interim response has none; it would not be read, and so nothing bound it
            raise ReplyBroken
        self._body.append(part)
        self.unread_bytes += len(part)
        self._is_in_fields = False

    def on_chunk_header(self) -> None:
        """Note the start of a chunk: after an empty one, fields follow."""
        self._is_in_fields = True
        self._unparsed_bytes = 0

    def on_message_complete(self) -> None:
        """Note the end of the response, or of a header that announces another one."""
        if self.has_head:
            self.is_whole = True
            self.keeps_connection = self._parser.should_keep_alive()
        else:
            self._fields.clear()
            self._fields_bytes = self._unparsed_bytes = 0


class Connection(asyncio.BufferedProtocol):
    """A connection to `origin`. It `is_open` while a request may be sent, and idle since that time."""

    __slots__ = (
        "_arrivals",
        "_failure",
        "_is_asked",
        "_is_full",
        "_is_paused",
        "_lease",
        "_loop",
        "_pool",
        "_response",
        "_rest",
        "_transport",
        "_waiter",
        "idle_since",
        "is_open",
        "origin",
    )
    _transport: asyncio.Transport

    def __init__(self, origin: Origin, pool: "Pool", loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.is_open = False
        self.idle_since = 0.0
        self._pool = pool
        self._loop = loop
        self._is_asked = False  # a response is due
        self._response: Response | None = None  # as far as it has come
        self._rest: memoryview | None = None  # of a request's body
        self._lease = UNBOUNDED  # on which it may be written
        self._is_full = False  # something waits to be written
        self._is_paused = False  # nothing is read now
        self._waiter: asyncio.Future[None] | None = None
        self._failure: type[NoReply] | None = None  # why nothing more comes
        self._arrivals = select.poll()

    def is_quiet(self) -> bool:
        """Return whether nothing has arrived since it is idle: the loop checks only once a turn, and this checks now."""
        if self._transport.is_closing():  # which it tells us in the next turn
            return False
        return not self._arrivals.poll(0)

    def send(self, head: bytes, body: bytes, lease: Lease) -> None:
        """Send a request, for which the connection must be open and idle. Raises `LeaseOver`, with nothing written."""
        is_small = len(body) <= _PART_BYTES
        first = head + body if is_small else head
        if lease.seconds_left() <= 0:  # what begins the attempt follows at once: a pause in between is not seen
            raise LeaseOver
        self._transport.write(first)
        self._is_asked = True
        if not is_small:
            self._rest, self._lease = memoryview(body), lease
            self._write_on()

    async def ask(self, request: ModuleRequest) -> Response:
        """Send a request, as `send` does, and return the response to it once its head is there. Raises `NoReply`, too."""
        try:
            self.send(request.head(), request.body, request.lease)
            while (response := self._response) is None or not response.has_head:
                await self.more()
        except BaseException:  # also without a waiter
            self.release()
            raise
        return response

    def more(self) -> asyncio.Future[None]:
        """Done when more of the response may be there. Raises `NoReply` if no more will come."""
        if self._failure is not None:
            raise self._failure
        if self._is_paused:
            self._read_on()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def release(self) -> None:
        """Keep the connection of a response that was read, if it is clean."""
        response, self._response, self._is_asked = self._response, None, False
        self._lease = UNBOUNDED
        if (
            response is None
            or not (self.is_open and response.is_whole and response.keeps_connection)
            or self._rest is not None
            or self._is_full
        ):
            self.abort()
        else:
            if self._is_paused:
                self._read_on()  # or a close by the module would not be noticed
            self._pool.keep(self)
        if response is not None and not response.is_whole:
            response.end()

    def abort(self) -> None:
        """Close now, dropping anything still to be read or written."""
        self._fail(ConnectionLost)
        self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is open, after the TLS handshake if there is one."""
        self._transport = cast("asyncio.Transport", transport)
        # It is full as soon as something waits in it: more than these bytes, or with TLS so many.
        self._transport.set_write_buffer_limits(high=int(self.origin.is_tls), low=0)
        self._arrivals.register(transport.get_extra_info("socket"), select.POLLIN)
        self.is_open = True
        self._pool.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for received bytes."""
        del sizehint
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process part of the response, or abort on unrequested bytes: the next call would take them for its reply."""
        data: bytes | memoryview = self._pool.buffer[:nbytes]
        response, start = self._response, b""
        if response is None and self._is_asked:
            data = start = bytes(data)
            head = self._pool.heads.get(self.origin)
            if head is not None and (body := head.body_in(start)) is not None:
                self._response = Response(self, head, body)
                self._wake()
                return
            self._response = response = Response(self)
        if response is None or response.is_whole:
            self.abort()
            return
        try:
            response.feed(data)
            if start and (head := response.plain_head(start)) is not None:
                self._pool.heads[self.origin] = head
        except ReplyBroken:
            self._fail(ReplyBroken)
            self._transport.abort()
            return
        if response.unread_bytes > _MAX_UNREAD_BYTES and not response.is_whole:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Note that the module sends no more."""
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is closed, by either side."""
        self._ended(exc)
        self._pool.forget(self)

    def pause_writing(self) -> None:
        """Note that the module reads slowly."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Continue writing: the server has read."""
        self._is_full = False
        self._write_on()

    def _read_on(self) -> None:
        self._is_paused = False
        self._transport.resume_reading()

    def _write_on(self) -> None:
        """Write the next part of a large body, if it is time for one."""
        if self._rest is None or self._is_full or not self.is_open:
            return
        if self._lease.seconds_left() <= 0:  # what the module has of it is no request
            self.abort()
            return
        part, rest = self._rest[:_PART_BYTES], self._rest[_PART_BYTES:]
        self._rest = rest or None
        self._transport.write(part)
        if self._rest is not None and not self._is_full:
            self._loop.call_soon(self._write_on)

    def _ended(self, exc: Exception | None) -> None:
        response = self._response
        if response is not None and exc is None and self._failure is None:
            response.end()
        self._fail(ConnectionLost if response is None or not response.has_head else ReplyBroken)

    def _fail(self, failure: type[NoReply]) -> None:
        """Fail: nothing more comes. The first reason counts."""
        self.is_open = False
        self._rest = None
        self._failure = self._failure or failure
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Pool:
    """A pool of connections without a limit: the worker's slots bound the calls, and a call must not wait in two places.

    Connections read into its `buffer`, one after the other: one of their own, as asyncio makes it, costs ten times as much.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.addresses = Addresses()
        self.heads: dict[Origin, PlainHead] = {}
        self.is_closed = False
        self._all: set[Connection] = set()
        self._idle: dict[Origin, list[Connection]] = {}  # in the order in which they became so
        self._sweeping: asyncio.TimerHandle | None = None
        self._last_is_gone = asyncio.Event()

    def take(self, origin: Origin) -> Connection | None:
        """Return the connection that was used last, if it is still good. Nothing else will get it."""
        idle = self._idle.get(origin)
        oldest = machine_clock.monotonic() - _KEEPALIVE_SECONDS
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
        connection.idle_since = machine_clock.monotonic()
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
        oldest = machine_clock.monotonic() - _KEEPALIVE_SECONDS
        for connection in self.idle():
            if connection.idle_since <= oldest:
                connection.abort()
        self._idle = {
            origin: still for origin, idle in self._idle.items() if (still := [one for one in idle if one.is_open])
        }
        self.heads = {origin: head for origin, head in self.heads.items() if origin in self._idle}
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
            return await connection.ask(request)
        except LeaseOver:
            progress.sent = False
            raise

    async def probe(self, request: ModuleRequest) -> int:
        """Implements `HttpClientPort.probe`."""
        pool = self._pool_here()
        response = await (await self._connect(pool, request)).ask(request)
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


def _trusting_context() -> ssl.SSLContext:
    """Return the context that discovery uses. Reading the certificates takes a noticeable part of a worker's start."""
    from httpx import create_ssl_context  # and so does this

    return create_ssl_context()


def _is_own(exc: OSError | UnicodeError) -> bool:
    """Return whether the reason is in this worker, independent of the module."""
    return isinstance(exc, gaierror | UnicodeError) or exc.errno in _OWN_TROUBLE


def _why(exc: OSError | UnicodeError, seconds: float) -> NotConnected:
    """Return the reason without an address, as a model reads it. `seconds`: how long the connection was awaited."""
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
