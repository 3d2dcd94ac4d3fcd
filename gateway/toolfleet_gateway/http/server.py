"""Serves the gateway's app by uvicorn within bounds of its connections, until a signal ends it."""

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from types import FrameType
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from toolfleet_gateway.http.app import LIVE, READY
from toolfleet_gateway.http.problems import MEDIA_TYPE, Problem, invalid_request, title_of
from toolfleet_registry.config.gateway_settings import GATEWAY_LEAVE_SECONDS, GATEWAY_STOP_SECONDS, GatewaySettings

HEADER_BYTES: Final = 32 * 2**10
"""Of a request's URL and headers: the longest tokens are about 8 KiB."""

HEADER_SECONDS: Final = 10.0
"""How long a request's headers may take to arrive, and a new connection to say anything: a slow line needs a few, a silent client gets no more."""

_LINGER_SECONDS = 5.0  # for the rest of a body that was refused: a connection that is cut at once loses its answer
_FLUSH_SECONDS = 30.0  # for a client to take the end of an answer, or something of it
_MOST_WAITING = 16  # requests behind one that is being answered: a few bytes each to send, and kilobytes to keep
_SILENT_FRACTION = 0.25  # of the connections may one address have open that have not sent a request's head
_LEAST_SILENT = 16  # however few connections there may be
_HOST_BITS = 64  # of an IPv6 address are its owner's own: a network of that size counts as one address
_RESERVED = 64  # connections beyond the limit that are answered about health, and of nothing else
_RESERVED_SECONDS = 1.0  # for their request's head: the next probe needs the place
_HEALTH = frozenset({LIVE.encode(), READY.encode()})
_VERSIONS = frozenset({"1.0", "1.1"})
_SCHEMES = frozenset({b"http", b"https"})

_BUSY = Problem(
    503, "busy", "So many connections are open that no other can be.", retryable=True, retry_after_seconds=1
)
_TOO_SILENT = Problem(
    503,
    "busy",
    "So many connections of this address have sent no request that the oldest is closed.",
    retryable=True,
    retry_after_seconds=1,
)

_KEEP_ALIVE_SECONDS = (
    75  # longer than load balancers keep theirs: none sends a request into a connection that is just closed
)
_STEP_SECONDS = 0.05  # between two checks for a second signal


@dataclass(frozen=True, slots=True)
class _ConnectionLimits:
    """The limits of one connection before its request reaches an app, and of the number of connections."""

    header_bytes: int
    header_seconds: float
    connections: int
    trusted_proxies: Sequence[IPv4Network | IPv6Network] = ()

    @property
    def most_silent(self) -> int:
        """The number of open connections of one address that have not sent a request's head."""
        return max(int(self.connections * _SILENT_FRACTION), _LEAST_SILENT)

    def bounded_address(self, client: tuple[str, int] | None) -> str:
        """Return the address whose silent connections are counted together; empty for a trusted proxy's, which has many clients."""
        try:
            address = ip_address((client or ("",))[0].partition("%")[0])
        except ValueError:  # a socket of this machine, behind which a proxy may be
            return ""
        address = getattr(address, "ipv4_mapped", None) or address
        if any(address in network for network in self.trusted_proxies):
            return ""
        return str(address) if address.version == 4 else str(ip_network((address, _HOST_BITS), strict=False))  # noqa: PLR2004 - IPv4


class _TooLarge(Exception):
    pass


class _Refused(Exception):
    """The request is ambiguous, too many requests wait before it, or its connection is only for health probes."""


class _GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits: of a request's line and headers, of the time they take, and of connections."""

    limits: ClassVar[_ConnectionLimits]
    silent: ClassVar[dict[str, dict["_GuardedProtocol", None]]]  # by address, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Implements `asyncio.Protocol.connection_made`."""
        self._head_bytes = 0
        self._is_in_body = False
        self._current: RequestResponseCycle | None = None
        self._unanswered = deque[RequestResponseCycle]()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._address = self.limits.bounded_address(self.client)
        over = len(self.connections) - self.limits.connections
        self._is_reserved = over > 0
        if over > _RESERVED:
            self._end(_BUSY)
            return
        seconds = self.limits.header_seconds
        self._arm(min(seconds, _RESERVED_SECONDS) if self._is_reserved else seconds, self._headers_late)
        self._enter_silent()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements `asyncio.Protocol.connection_lost`."""
        self._disarm()
        self._leave_silent()
        self._unwatch()
        self._tell_all()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        if not self.transport.is_closing():
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self.scope["toolfleet.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key] # for streams
        self._head_bytes = 0
        if self._timer is None:
            self._arm(self.limits.header_seconds, self._headers_late)

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the request's head: the body follows, if there is one."""
        self._check_line()
        self._is_reserved = self._is_reserved and len(self.connections) > self.limits.connections
        if len(self._unanswered) > _MOST_WAITING or (self._is_reserved and self.url.partition(b"?")[0] not in _HEALTH):
            raise _Refused
        self._leave_silent()
        self._disarm()
        self._is_in_body = True
        super().on_headers_complete()
        self._current = self.cycle
        self.cycle.keep_alive = self.cycle.keep_alive and not self._is_reserved
        self._unanswered.append(self.cycle)

    def on_message_complete(self) -> None:
        """End the request."""
        self._is_in_body = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Finish the answer. The unread rest of a body may come for a moment."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self._is_in_body and not self.transport.is_closing():
            self._arm(_LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Pause: the client reads less than it is sent.

        One that reads nothing at all is cut: an answer would be held for ever.
        """
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Resume: the client has taken almost all that it was sent."""
        self._unwatch()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing comes, also where its client does not take what it was sent."""
        super().timeout_keep_alive_handler()
        self._arm(_FLUSH_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, or is beyond the limits."""
        del msg
        if self._head_bytes > self.limits.header_bytes:
            most = self.limits.header_bytes
            self._end(Problem(431, "headers_too_large", f"URL and headers are larger than {most} bytes."))
        elif self._is_reserved:
            self._end(_BUSY)
        else:
            self._end(invalid_request("The request is not valid HTTP/1.1."))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.header_bytes:
            raise _TooLarge  # the parser stops, and has `send_400_response` called

    def _check_line(self) -> None:
        """Check the request's line: a URL with a host is for that host, and HTTP/0.9 has no `Host`. Uvicorn checks neither."""
        if self.parser is None or self.parser.get_http_version() not in _VERSIONS:
            raise _Refused
        if not self.url.startswith(b"/"):
            parts = urlsplit(self.url)
            hosts = [value for name, value in self.headers if name == b"host"]
            if parts.scheme.lower() not in _SCHEMES or [parts.netloc.lower()] != [host.lower() for host in hosts]:
                raise _Refused

    def _headers_late(self) -> None:
        self._timer = None
        if not self.is_answering():
            late = Problem(408, "headers_too_slow", "The request's headers did not arrive in time.")
            self._end(_BUSY if self._is_reserved else late)

    def _enter_silent(self) -> None:
        """Count a connection until its first request's head is complete. One too many of an address ends the oldest of them."""
        if not self._address:
            return
        of_address = self.silent.setdefault(self._address, {})
        of_address[self] = None
        if len(of_address) > self.limits.most_silent:
            next(iter(of_address)).end_as_silent()

    def _leave_silent(self) -> None:
        of_address = self.silent.get(self._address, {})
        of_address.pop(self, None)
        if not of_address:
            self.silent.pop(self._address, None)

    def end_as_silent(self) -> None:
        """Close a connection that has sent no request, for newer ones of its address."""
        self._leave_silent()
        self._end(_TOO_SILENT)

    def is_answering(self) -> bool:
        """Return whether an answer is being written on this connection."""
        current = self._current
        return current is not None and current.response_started and not current.response_complete

    def _end(self, problem: Problem) -> None:
        if self._let_earlier_end():
            return
        if self.is_answering():  # nothing may be written into another answer
            self.transport.abort()
            return
        text = problem.body("").model_dump_json(exclude_none=True).encode()
        retry = "" if problem.retry_after_seconds is None else f"retry-after: {problem.retry_after_seconds:g}\r\n"
        head = f"HTTP/1.1 {problem.status} {title_of(problem.status)}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        rest = f"{retry}content-length: {len(text)}\r\nconnection: close\r\n\r\n"
        self.transport.write((head + rest).encode() + text)
        self._tell_all()  # what an app says of the rest comes too late
        self.transport.close()
        self._arm(_FLUSH_SECONDS, self.transport.abort)

    def _let_earlier_end(self) -> bool:
        """Have the requests before this one answered, if there are any, and then nothing more: its answer would be taken for theirs."""
        earlier = list(self._unanswered)
        if self._is_in_body:
            earlier.pop()
        if not earlier:
            return False
        earlier[-1].keep_alive = False
        if self._is_in_body:
            self._is_in_body = False
            self._unanswered.pop()
            self.pipeline.popleft()
        return True

    def _tell_all(self) -> None:
        """Tell all unanswered requests that the client has gone.

        Uvicorn tells the last one only: a stream before it would go on for ever.
        """
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def _watch(self, left: int) -> None:
        self._unwatch()
        self._flush_timer = self.loop.call_later(_FLUSH_SECONDS, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch(left)
        else:
            self.transport.abort()

    def _unwatch(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _arm(self, seconds: float, act: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, act)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _protocol_of(limits: _ConnectionLimits) -> type[_GuardedProtocol]:
    """Return a protocol class with these limits: uvicorn makes an object of it for each connection."""
    return type("LimitedProtocol", (_GuardedProtocol,), {"limits": limits, "silent": {}})


class GatewayServer(uvicorn.Server):
    """A server that announces its end to the app, continues for a moment, and then lets running requests end."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        listening: Callable[[], None],
        leaving: Callable[[], None],
        leave_seconds: float,
    ) -> None:
        super().__init__(config)
        self._listening = listening
        self._leaving = leaving
        self._leave_seconds = leave_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at a signal, without uvicorn's raising it again, which would leave the fleet open."""
        del frame
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that it ends, wait until a load balancer has seen that, and end."""
        self._leaving()
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._leave_seconds
        while not self.force_exit and clock() < give_up_at:  # noqa: ASYNC110 - a signal handler sets it
            await asyncio.sleep(_STEP_SECONDS)
        await super().shutdown(sockets)


def make_server(
    app: ASGIApp,
    settings: GatewaySettings,
    *,
    listening: Callable[[], None],
    leaving: Callable[[], None],
    leave_seconds: float = GATEWAY_LEAVE_SECONDS,
) -> GatewayServer:
    """Return the server of `app`. It calls `listening` once it takes requests, and `leaving` first when it is to end."""
    limits = _ConnectionLimits(
        HEADER_BYTES,
        HEADER_SECONDS,
        settings.gateway_connections,
        tuple(map(ip_network, settings.gateway_trusted_proxies)),
    )
    config = uvicorn.Config(
        app,
        http=_protocol_of(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.gateway_root_path,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(GATEWAY_STOP_SECONDS),
    )
    return GatewayServer(config, listening=listening, leaving=leaving, leave_seconds=leave_seconds)
