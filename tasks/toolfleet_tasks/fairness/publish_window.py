"""Bounds the publishes in flight of one agent: calls beyond the bound wait, and the users among them take turns."""

import asyncio
from collections import OrderedDict, deque

from toolfleet_registry.errors import NotPublished
from toolfleet_tasks.fairness.wait_queue import CallerLane

_Place = asyncio.Future[None]


class PublishWindow:
    """A window of at most `size` publishes between sending and answer. Belongs to the running loop.

    Without it a burst is sent in one write, and an answer that waits behind thousands comes too late to be believed.
    """

    def __init__(self, size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = size
        self._rows = OrderedDict[
            CallerLane, deque[_Place]
        ]()  # who has left is still among them; the first is served next

    def take(self) -> bool:
        """Take a place now, if one is free. Then there are no waiters: a leaving one passes its place on."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def enter(self, caller_lane: CallerLane, *, until: float) -> None:
        """Take a place, by the loop's clock `until` at the latest: within a caller's lane the first come first, lanes in turn.

        Raises `TimeoutError`, and `NotPublished` when the fleet is left.
        """
        if self.take():
            return
        place: _Place = self._loop.create_future()
        self._rows.setdefault(caller_lane, deque()).append(place)
        try:
            async with asyncio.timeout_at(until):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.leave()  # it was ours just now
            place.cancel()
            raise

    def leave(self) -> None:
        """Give a place back, or pass it to the next waiter."""
        while self._rows:
            caller_lane, row = self._rows.popitem(last=False)
            while row:
                place = row.popleft()
                if not place.done():
                    if row:
                        self._rows[caller_lane] = row
                    place.set_result(None)
                    return
        self._free += 1

    def close(self) -> None:
        """Have those who wait told that the fleet was left."""
        rows, self._rows = self._rows, OrderedDict()
        for row in rows.values():
            for place in row:
                if not place.done():
                    place.set_exception(NotPublished("the fleet was left"))
