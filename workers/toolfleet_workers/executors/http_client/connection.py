"""Sends a request to a module over one connection, and reads its response as it comes in."""

import asyncio
import select
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from toolfleet_registry.contracts.attempts import UNBOUNDED, Lease, require_live
from toolfleet_workers.executors.http.reply import ConnectionLost, NoReply, ReplyBroken
from toolfleet_workers.executors.http.request import Origin

if TYPE_CHECKING:
    from toolfleet_workers.executors.http_client.client import Pool

_MAX_HEADER_BYTES = 2**16  # with what follows the body
_SEPARATORS_BYTES = len(b": \r\n")

_SPENT = HttpResponseParser(object())  # in place of one that refers to its response, for ever

# Of a request: what is larger is written in parts, each when the system has taken the one before, as it does with so much
# at once. Other calls get their turn between two, and after a pause of this process what it still has of a request stays here.
_PART_BYTES = 2**16
# Of an unread body: the module has to wait with more.
_MAX_UNREAD_BYTES = 2**17


class Response:
    """One response. `status` and the fields of its header are there when `has_head` is, the body when `is_whole` is.

    It `keeps_connection` if another request may follow. Of its body `unread_bytes` wait to be read.
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
        "status",
        "unread_bytes",
    )

    def __init__(self, source: "Connection") -> None:
        self.status = 0
        self.has_head = self.is_whole = self.keeps_connection = False
        self.unread_bytes = 0
        self._source = source
        self._body: list[bytes] = []
        self._ends_with_connection = False  # as it has no length
        self._fields: dict[bytes, bytes] = {}  # by name in lower case
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
        """A field of the header, or one that follows the body: of those we need none."""
        self._fields_bytes += _SEPARATORS_BYTES + len(name) + len(value)
        # Of what the leniency lets pass, these could make two readers understand two things.
        if self._fields_bytes > _MAX_HEADER_BYTES or b"\0" in value or name[-1:].isspace():
            raise ReplyBroken
        if not self.has_head:
            name, fields = name.lower(), self._fields
            fields[name] = b"%b, %b" % (fields[name], value.strip()) if name in fields else value.strip()

    def on_headers_complete(self) -> None:
        """The header has ended: ours, or one that says that ours is still to come."""
        status = self._parser.get_status_code()
        if status == HTTPStatus.SWITCHING_PROTOCOLS or status < HTTPStatus.CONTINUE:
            raise ReplyBroken
        if status < HTTPStatus.OK:
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
        """A chunk begins: if it has nothing in it, fields follow."""
        self._is_in_fields = True
        self._unparsed_bytes = 0

    def on_message_complete(self) -> None:
        """All is there, or nothing yet."""
        if self.has_head:
            self.is_whole = True
            self.keeps_connection = self._parser.should_keep_alive()
        else:
            self._fields.clear()
            self._fields_bytes = self._unparsed_bytes = 0


class Connection(asyncio.BufferedProtocol):
    """A connection to `origin`. It `is_open` while a request may be sent, and idle since that time of its loop."""

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
        self._is_full = False  # nothing should be written now
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
        require_live(lease)
        self._transport.write(first)
        self._is_asked = True
        if not is_small:
            self._rest, self._lease = memoryview(body), lease
            self._write_on()

    def response(self) -> Response | None:
        """The response to the request, once its head is there."""
        response = self._response
        return response if response is not None and response.has_head else None

    def more(self) -> asyncio.Future[None]:
        """Done when more of the response may be there. Raises `NoReply` if no more will come."""
        if self._failure is not None:
            raise self._failure
        self._read_on()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def release(self) -> None:
        """The response is done with: keep the connection if it is clean."""
        response, self._response, self._is_asked = self._response, None, False
        self._lease = UNBOUNDED
        if (
            response is None
            or not (self.is_open and response.is_whole and response.keeps_connection)
            or self._rest is not None
            or self._transport.get_write_buffer_size()
        ):
            self.abort()
        else:
            self._read_on()  # or a close by the module would not be noticed
            self._pool.keep(self)
        if response is not None:
            response.end()

    def abort(self) -> None:
        """Close now, dropping anything still to be read or written."""
        self._fail(ConnectionLost)
        self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is open, after the TLS handshake if there is one."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._arrivals.register(transport.get_extra_info("socket"), select.POLLIN)
        self.is_open = True
        self._pool.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for received bytes."""
        del sizehint
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process part of the response, or abort on unrequested bytes: the next call would take them for its reply."""
        response = self._response
        if response is None and self._is_asked:
            self._response = response = Response(self)
        if response is None or response.is_whole:
            self.abort()
            return
        try:
            response.feed(self._pool.buffer[:nbytes])
        except ReplyBroken:
            self._fail(ReplyBroken)
            self._transport.abort()
            return
        if response.unread_bytes > _MAX_UNREAD_BYTES and not response.is_whole:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The module says no more."""
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is closed, by either side."""
        self._ended(exc)
        self._pool.forget(self)

    def pause_writing(self) -> None:
        """The module is slow to read."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Continue writing: the server has read."""
        self._is_full = False
        self._write_on()

    def _read_on(self) -> None:
        if self._is_paused:
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
