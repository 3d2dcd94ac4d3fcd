"""Tells whether the Redis at a connection's other end still has all its data: the same server, with the same data.

A server that was restarted, or promoted by a fail-over, may know less; and an operator may delete all.
"""

import asyncio
import contextlib
import re

from redis.exceptions import ResponseError

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import randomness
from toolfleet_tasks.redis.connection import PipelinedConnection

_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class RedisIdentity:
    """Belongs to the connection's event loop; times are those of its clock."""

    def __init__(self, connection: PipelinedConnection, keys: Keys) -> None:
        self._connection = connection
        self._key = keys.data_id
        self._loop = asyncio.get_running_loop()
        self._run_id: bytes | None = None
        self._is_known = asyncio.Event()
        self._changed_at = 0.0
        self.data_id = ""
        """Names the data that Redis has, as long as that has lost nothing; "" if it is not known, or not for this user."""

    @property
    def is_known(self) -> bool:
        """Whether any server has been identified."""
        return self._run_id is not None

    def connection_lost(self) -> None:
        """The next one may lead to another server."""
        self._is_known.clear()

    async def known(self) -> None:
        """Wait until it is known which server answers now. Has no deadline. Raises `RedisConnectionClosed`."""
        await self._connection.connected()
        await self._is_known.wait()

    def is_same_since(self, moment: float) -> bool:
        """Return whether nothing is known to have been lost since then: for commands on this connection, while Redis has `data_id`."""
        return moment > self._changed_at and self.data_id != ""

    async def recognise(self) -> None:
        """Look at the server of a new connection. Raises `RedisConnectionLost`."""
        try:
            found = _RUN_ID.search(await self._connection.send("INFO", "server"))
        except ResponseError:  # not for this user
            found = None
        before, self._run_id = self._run_id, found[1] if found else b""
        if before is not None and (not before or before != self._run_id):
            self._changed_at = self._loop.time()
        await self.recheck()
        self._is_known.set()

    async def recheck(self) -> None:
        """Look at the data of the same connection. Raises `RedisConnectionLost`."""
        with contextlib.suppress(ResponseError):  # a replica takes nothing
            await self._connection.send("SET", self._key, randomness.uuid4().hex, "NX")
        try:
            found = await self._connection.send("GET", self._key)
        except ResponseError:  # as above
            found = None
        before, self.data_id = self.data_id, (found or b"").decode()
        if before not in {"", self.data_id}:
            self._changed_at = self._loop.time()
