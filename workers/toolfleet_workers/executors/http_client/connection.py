"""Sends a request to a module over one connection and takes its response; then the connection is free for the next."""

import asyncio
import select
from typing import TYPE_CHECKING, cast

from toolfleet_registry.time.lease import UNBOUNDED, Lease, require_live
from toolfleet_workers.executors.http.no_reply import ConnectionLost, NoReply, ReplyBroken
from toolfleet_workers.executors.http.target import Origin
from toolfleet_workers.executors.http_client.response import Response

if TYPE_CHECKING:
    from toolfleet_workers.executors.http_client.client import Pool

# Of a request: what is larger is written in parts, each when the system has taken the one before, as it does with so much
# at once. Other calls get their turn between two, and after a pause of this process what it still has of a request stays here.
_PART_BYTES = 2**16
# Of an unread body: the module has to wait with more.
_MAX_UNREAD_BYTES = 2**17


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
