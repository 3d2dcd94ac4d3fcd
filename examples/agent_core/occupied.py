"""One turn at a time in a conversation, within this process; between processes the conversations' positions decide."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Occupied(Exception):
    """A turn is under way in this conversation: come again."""


class OneAtATime:
    """A lock for each conversation that somebody is in."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, conversation_id: str, *, seconds: float) -> AsyncGenerator[None]:
        """Have the conversation for oneself. Raises `Occupied` if others do, after waiting for `seconds`."""
        lock, users = self._locks.get(conversation_id, (asyncio.Lock(), 0))
        self._locks[conversation_id] = lock, users + 1
        try:
            try:
                async with asyncio.timeout(seconds):
                    await lock.acquire()
            except TimeoutError as exc:
                raise Occupied(conversation_id) from exc
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks.pop(conversation_id)
            if users > 1:
                self._locks[conversation_id] = lock, users - 1
