"""A Redis that is far away: passes bytes on to a near one, each way so much later. No limit to how much.

`python -m benchmarks.proxy LISTEN_PORT TARGET_PORT DELAY_MS`. One thread and two system calls a turn; the delay is
the same for all, so what came first is due first, and a queue is all the order that is needed.
"""

import contextlib
import select
import socket
import sys
import time
from collections import deque

_READ_BYTES = 256 * 1024
_BACKLOG = 1024


class End:
    """One side of a passed-on connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.unsent = bytearray()
        self.other: End
        self.is_open = True


class DelayProxy:
    """Accepts connections on one port, and passes them on to another."""

    def __init__(self, port: int, target_port: int, delay_seconds: float) -> None:
        self._target = ("127.0.0.1", target_port)
        self._delay = delay_seconds
        self._listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._ends: dict[int, End] = {}
        self._due: deque[tuple[float, End, bytes]] = deque()
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)

    def run(self) -> None:
        """Pass on, for ever."""
        while True:
            # An epoll waits for whole milliseconds, select for microseconds; and an epoll can be waited for.
            timeout = max(0.0, self._due[0][0] - time.perf_counter()) if self._due else None
            select.select([self._epoll], [], [], timeout)
            for fd, events in self._epoll.poll(0):
                self._handle(fd, events)
            self._deliver()

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif end := self._ends.get(fd):
            if events & select.EPOLLOUT:
                self._send(end, b"")
            if events & ~select.EPOLLOUT and end.is_open:
                self._read(end)

    def _accept(self) -> None:
        near = End(self._listener.accept()[0])
        far = End(socket.create_connection(self._target))
        near.other, far.other = far, near
        for end in (near, far):
            self._ends[end.sock.fileno()] = end
            self._epoll.register(end.sock, select.EPOLLIN)

    def _read(self, end: End) -> None:
        try:
            data = end.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._due.append((time.perf_counter() + self._delay, end.other, data))
        else:
            self._epoll.unregister(end.sock)
            end.is_open = False
            self._due.append((time.perf_counter() + self._delay, end.other, b""))

    def _deliver(self) -> None:
        now = time.perf_counter()
        while self._due and self._due[0][0] <= now:
            _, end, data = self._due.popleft()
            if data:
                self._send(end, data)
            else:
                self._close(end)

    def _send(self, end: End, data: bytes) -> None:
        if not end.is_open:
            return
        end.unsent += data
        with contextlib.suppress(OSError):
            sent = end.sock.send(end.unsent)
            del end.unsent[:sent]
        self._epoll.modify(end.sock, select.EPOLLIN | (select.EPOLLOUT if end.unsent else 0))

    def _close(self, end: End) -> None:
        """The other side has ended: so does this one."""
        for side in (end, end.other):
            if side.is_open:
                side.is_open = False
                self._epoll.unregister(side.sock)
            self._ends.pop(side.sock.fileno(), None)
            side.sock.close()


def main() -> None:
    """Run a proxy."""
    port, target_port, delay_ms = sys.argv[1:4]
    DelayProxy(int(port), int(target_port), float(delay_ms) / 1000).run()


if __name__ == "__main__":
    main()
