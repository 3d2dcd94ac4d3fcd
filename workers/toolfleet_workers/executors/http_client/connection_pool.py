"""Pools the connections of one loop: those in use, and those that wait for another request."""

import asyncio

from toolfleet_workers.executors.http.target import Origin
from toolfleet_workers.executors.http_client.addresses import Addresses
from toolfleet_workers.executors.http_client.connection import Connection

# A POST on a connection that its server is just closing has an unknown outcome. Servers close idle ones after 2 s
# (gunicorn) or 5 s (uvicorn, node); the rest is room for a slow network and a busy loop.
_KEEPALIVE_SECONDS = 1
_READ_BYTES = 2**16  # at a time


class Pool:
    """Has no limit: how many calls run is decided by the worker's slots, and a call must not wait in two places."""

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
        """Those that are open and wait for another request."""
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
