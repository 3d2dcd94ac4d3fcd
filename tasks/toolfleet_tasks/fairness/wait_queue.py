"""Queues calls in their agent until their caller's limit has room for them: first come, first served.

Room comes when a call of this agent ends, which is told here; calls of the same user in other agents end unheard, so
the first waiter tries by itself now and then.
"""

import asyncio
import heapq
import itertools
from dataclasses import dataclass, field

from toolfleet_registry.errors import NotPublished
from toolfleet_registry.system import randomness

_SHORTEST_ASK, _LONGEST_ASK = (
    0.25,
    1.0,
)  # seconds between two questions of the first waiter; agents must not ask in step

CallerLane = tuple[str, str | None]
"""Lane and user id."""

_Place = asyncio.Future[None]


@dataclass(slots=True)
class _Row:
    """The waiters of one caller's lane, by ticket; those that have left are still among the places.

    `timer` runs as long as there are waiters.
    """

    places: list[tuple[int, _Place]] = field(default_factory=list)
    waiting: int = 0
    timer: asyncio.TimerHandle | None = None


class WaitQueue:
    """The waiters of all callers' lanes. Belongs to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count()
        self._rows: dict[CallerLane, _Row] = {}
        self._is_closed = False

    def ticket(self) -> int:
        """A place in the order of coming, to be kept until the call is published."""
        return next(self._tickets)

    def is_awaited(self, caller_lane: CallerLane) -> bool:
        """Return whether there are waiters for this caller's lane: then others queue up behind."""
        return caller_lane in self._rows

    async def wait(self, caller_lane: CallerLane, ticket: int, *, until: float) -> None:
        """Return when it is worth a try, by the loop's clock `until` at the latest. Who tries in vain waits again.

        Raises `TimeoutError`, and `NotPublished` when the fleet is left.
        """
        if self._is_closed:
            raise NotPublished("the fleet was left")
        place: _Place = self._loop.create_future()
        row = self._rows.get(caller_lane)
        if row is None:
            row = self._rows[caller_lane] = _Row()
            self._ask_later(caller_lane, row)
        heapq.heappush(row.places, (ticket, place))
        row.waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.free(caller_lane)  # it was our turn just now
            else:
                self._leave(caller_lane, row, place)
            raise

    def free(self, caller_lane: CallerLane) -> None:
        """Let the first waiter try: there may be room.

        Also to be called after an attempt that succeeded: there may be more.
        """
        row = self._rows.get(caller_lane)
        while row is not None and row.places:
            _, place = heapq.heappop(row.places)
            if not place.done():
                place.set_result(None)
                self._count_out(caller_lane, row)
                return

    def close(self) -> None:
        """End all waits: no call gets a turn any more."""
        self._is_closed = True
        rows, self._rows = self._rows, {}
        for row in rows.values():
            if row.timer is not None:
                row.timer.cancel()
            for _, place in row.places:
                if not place.done():
                    place.set_exception(NotPublished("the fleet was left"))

    def _leave(self, caller_lane: CallerLane, row: _Row, place: _Place) -> None:
        place.cancel()
        if self._rows.get(caller_lane) is row:
            self._count_out(caller_lane, row)

    def _count_out(self, caller_lane: CallerLane, row: _Row) -> None:
        row.waiting -= 1
        if not row.waiting:
            del self._rows[caller_lane]
            if row.timer is not None:
                row.timer.cancel()

    def _ask_later(self, caller_lane: CallerLane, row: _Row) -> None:
        row.timer = self._loop.call_later(
            randomness.uniform(_SHORTEST_ASK, _LONGEST_ASK), self._ask, caller_lane, row
        )  # no secret

    def _ask(self, caller_lane: CallerLane, row: _Row) -> None:
        self.free(caller_lane)
        if self._rows.get(caller_lane) is row:
            self._ask_later(caller_lane, row)
