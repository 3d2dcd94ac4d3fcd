"""The ends of calls that somebody else publishes: heard of, or read if they have ended before."""

import asyncio

from redis.exceptions import ResponseError

from toolfleet_registry.errors import NotPublished
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.results.end_check import Meta
from toolfleet_tasks.results.listener import Inbox
from toolfleet_tasks.results.reader import Shelf


class Ends:
    """Waits at `inbox`. `shelf` has the results; it is closed here."""

    def __init__(self, inbox: Inbox, shelf: Shelf, *, keys: Keys) -> None:
        self._inbox = inbox
        self._shelf = shelf
        self._keys = keys

    async def aclose(self) -> None:
        """Let go of what was needed for reading."""
        await self._shelf.aclose()

    async def of(self, call_id: str, *, seconds: float | None) -> Meta | None:
        """What Celery has stored of a call, once it has ended; `None` if it has not in `seconds`.

        Raises `NotPublished` if the fleet is left meanwhile.
        """
        waiter = _Waiter()
        expected = self._inbox.expect(call_id, waiter)
        try:
            async with asyncio.timeout(seconds):
                await self._look(call_id)
                return await waiter.meta
        except TimeoutError:
            return None
        finally:
            self._inbox.forget(expected)

    async def _look(self, call_id: str) -> None:
        """What cannot be read now is swept later."""
        try:
            await self._inbox.listening(call_id)
            stored = await self._shelf.peek(self._keys.result(call_id).encode())
        except (KeyError, OSError, ResponseError):  # KeyError: its end was heard meanwhile
            return
        self._inbox.found(call_id, stored)


class _Waiter:
    def __init__(self) -> None:
        self.meta: asyncio.Future[Meta] = asyncio.get_running_loop().create_future()

    def ended(self, meta: Meta) -> None:
        if not self.meta.done():
            self.meta.set_result(meta)

    def left(self) -> None:
        if not self.meta.done():
            self.meta.set_exception(NotPublished("the fleet was left"))
