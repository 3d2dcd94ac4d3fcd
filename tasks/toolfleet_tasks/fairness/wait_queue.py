"""Calls that wait in their agent until their caller's share has room for them: first come, first served.

Room comes when a call of this agent ends, which is told here; calls of the same user in other agents end unheard, so
whoever is first asks by itself now and then.
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
)  # seconds between two questions of whoever is first; agents must not ask in step

Share = tuple[str, str | None]
"""Lane and user id."""

_Place = asyncio.Future[None]


@dataclass(slots=True)
class _Row:
    """Those who wait for one share, by ticket; who has left is still among the places. `timer` runs as long as anybody waits."""

    places: list[tuple[int, _Place]] = field(default_factory=list)
    waiting: int = 0
    timer: asyncio.TimerHandle | None = None


class Turns:
    """Who waits for which share. Belongs to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count()
        self._rows: dict[Share, _Row] = {}
        self._is_closed = False

    def ticket(self) -> int:
        """A place in the order of coming, to be kept until the call is published."""
        return next(self._tickets)

    def is_awaited(self, share: Share) -> bool:
        """Whether anybody waits for this share: then others queue up behind."""
        return share in self._rows

    async def wait(self, share: Share, ticket: int, *, until: float) -> None:
        """Return when it is worth a try, by the loop's clock `until` at the latest. Who tries in vain waits again.

        Raises `TimeoutError`, and `NotPublished` when the fleet is left.
        """
        if self._is_closed:
            raise NotPublished("the fleet was left")
        place: _Place = self._loop.create_future()
        row = self._rows.get(share)
        if row is None:
            row = self._rows[share] = _Row()
            self._ask_later(share, row)
        heapq.heappush(row.places, (ticket, place))
        row.waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.free(share)  # it was our turn just now
            else:
                self._leave(share, row, place)
            raise

    def free(self, share: Share) -> None:
        """There may be room: whoever is first has a try. Also to be called after a try that succeeded: there may be more."""
        row = self._rows.get(share)
        while row is not None and row.places:
            _, place = heapq.heappop(row.places)
            if not place.done():
                place.set_result(None)
                self._count_out(share, row)
                return

    def close(self) -> None:
        """Nobody gets a turn any more."""
        self._is_closed = True
        rows, self._rows = self._rows, {}
        for row in rows.values():
            if row.timer is not None:
                row.timer.cancel()
            for _, place in row.places:
                if not place.done():
                    place.set_exception(NotPublished("the fleet was left"))

    def _leave(self, share: Share, row: _Row, place: _Place) -> None:
        place.cancel()
        if self._rows.get(share) is row:
            self._count_out(share, row)

    def _count_out(self, share: Share, row: _Row) -> None:
        row.waiting -= 1
        if not row.waiting:
            del self._rows[share]
            if row.timer is not None:
                row.timer.cancel()

    def _ask_later(self, share: Share, row: _Row) -> None:
        row.timer = self._loop.call_later(
            randomness.uniform(_SHORTEST_ASK, _LONGEST_ASK), self._ask, share, row
        )  # no secret

    def _ask(self, share: Share, row: _Row) -> None:
        self.free(share)
        if self._rows.get(share) is row:
            self._ask_later(share, row)
