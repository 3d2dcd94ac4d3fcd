"""Reads stored results, over a connection that subscribes to nothing, and large ones one after the other.

Redis gives up a subscriber that has more than 32 MB to read, as an agent has that was busy while results came. What it
reads of its own accord therefore never goes over the connection on which it listens.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from redis.exceptions import ResponseError

from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionLost

log = get_logger(__name__)

ANNOUNCED_AT_MOST = 256 * 1024
"""Bytes: a result over that is announced as `STORED`, with its id only."""
STORED = "STORED"

PEEK_SECONDS = 1.0  # for one answer of Redis, beyond a call's deadline, while its caller waits
_CHUNK = 100  # small results at a time

Found = Callable[[bytes, bytes | None], None]


class ResultReader:
    """Reads stored results.

    `connection` is started on first use, and closed with the reader; `found` gets key and content.
    """

    def __init__(self, connection: PipelinedConnection, found: Found) -> None:
        self._connection = connection
        self._found = found
        self._is_open = False
        self._wanted: dict[bytes, None] = {}
        self._fetching: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Fetch nothing more."""
        if self._fetching is not None:
            await end([self._fetching])
        await self._connection.aclose()

    def fetch(self, key: bytes) -> None:
        """Fetch a large result soon, after those that are wanted already."""
        self._wanted[key] = None
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_all(), name="toolfleet-shelf")

    async def sweep(self, keys: Sequence[bytes]) -> None:
        """Fetch the existing ones of these, large ones later. Raises `RedisConnectionLost` or `ResponseError`."""
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            await self._opened()
            sizes = await asyncio.gather(*(self._connection.send("STRLEN", key) for key in chunk))
            small = [key for key, size in zip(chunk, sizes, strict=True) if 0 < size <= ANNOUNCED_AT_MOST]
            for key, size in zip(chunk, sizes, strict=True):
                if size > ANNOUNCED_AT_MOST:
                    self.fetch(key)
            for key, content in zip(small, await self._connection.send("MGET", *small) if small else (), strict=True):
                self._found(key, content)

    async def peek(self, key: bytes) -> bytes | None:
        """Return the present value, also over a connection that is lost meanwhile.

        Raises `OSError` or `ResponseError` if Redis does not answer in a second.
        """
        async with asyncio.timeout(PEEK_SECONDS):
            await self._opened()
            content: bytes | None = await self._connection.execute("GET", key)
            return content

    async def end_of(self, record: str, key: bytes) -> str | None:
        """Return a call's stored result, "" if that has expired; `None` if by the ledger's `record` it has not ended.

        Raises as `peek`.
        """
        async with asyncio.timeout(PEEK_SECONDS):
            await self._opened()
            (state, result), value = await asyncio.gather(
                self._connection.execute("HMGET", record, "state", "result"), self._connection.execute("GET", key)
            )
        return (result or value or b"").decode(errors="replace") if state == b"done" else None

    async def _opened(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._connection.start()
        await self._connection.connected()

    async def _fetch_all(self) -> None:
        while self._wanted:
            key = next(iter(self._wanted))
            # What cannot be had now is swept later.
            with contextlib.suppress(RedisConnectionLost, ResponseError):
                await self._opened()
                self._found(key, await self._connection.send("GET", key))
            self._wanted.pop(key, None)
