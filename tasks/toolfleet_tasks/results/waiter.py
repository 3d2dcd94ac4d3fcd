"""Waits for the ends of calls that other processes publish: listens, or reads if they have ended before."""

import asyncio

from redis.exceptions import ResponseError

from toolfleet_registry.errors import NotPublished
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.results.end_check import Meta
from toolfleet_tasks.results.listener import ResultListener
from toolfleet_tasks.results.reader import ResultReader


class ResultWaiters:
    """Waits at `listener`. `reader` has the results; it is closed here."""

    def __init__(self, listener: ResultListener, reader: ResultReader, *, keys: Keys) -> None:
        self._listener = listener
        self._reader = reader
        self._keys = keys

    async def aclose(self) -> None:
        """Let go of what was needed for reading."""
        await self._reader.aclose()

    async def of(self, call_id: str, *, seconds: float | None) -> Meta | None:
        """Return Celery's stored value of a call, once it has ended; `None` if it has not in `seconds`.

        Raises `NotPublished` if the fleet is left meanwhile.
        """
        waiter = _Waiter()
        expected = self._listener.expect(call_id, waiter)
        try:
            async with asyncio.timeout(seconds):
                await self._read(call_id)
                return await waiter.meta
        except TimeoutError:
            return None
        finally:
            self._listener.forget(expected)

    async def _read(self, call_id: str) -> None:
        """Read a result that may have been missed. An unreadable one is swept later."""
        try:
            await self._listener.listening(call_id)
            stored = await self._reader.peek(self._keys.result(call_id).encode())
        except (KeyError, OSError, ResponseError):  # KeyError: its end was heard meanwhile
            return
        self._listener.found(call_id, stored)


class _Waiter:
    def __init__(self) -> None:
        self.meta: asyncio.Future[Meta] = asyncio.get_running_loop().create_future()

    def ended(self, meta: Meta) -> None:
        if not self.meta.done():
            self.meta.set_result(meta)

    def left(self) -> None:
        if not self.meta.done():
            self.meta.set_exception(NotPublished("the fleet was left"))
