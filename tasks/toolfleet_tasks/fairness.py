"""Decides whose turn it is: in an agent that of a user, in a worker that of a queue."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolfleet_registry.errors import NotPublished
from toolfleet_registry.system import randomness

UNBOUNDED = 2**31
"""Slots of a process that has no number of them."""

_SHORTEST_ASK, _LONGEST_ASK = (
    0.25,
    1.0,
)  # seconds between two questions of the first waiter; agents must not ask in step

CallerLane = tuple[str, str | None]
"""Lane and user id."""

_Place = asyncio.Future[None]


class FairSlots:
    """The slots of a worker, and how many each queue holds. A message has one from its delivery to its end.

    Free slots are for any queue: while no other module has calls, one may take them all. Once they are full, a queue
    that holds less than half of them may go beyond, all such queues together by a quarter of the slots; then a queue
    that holds half or more gets none, until it is below, or has the worker to itself. Pure counting: knows neither
    Redis nor what runs in a slot.

    A message that must not start before its time (a retry, say) is `deferred`: it has none until it `begin`s. After it
    was refused one, `on_capacity` is called as soon as there may be room for it, for any reason.
    """

    def __init__(self, slots: int = UNBOUNDED) -> None:
        self._held = dict[str, int]()  # by queue; none has 0
        self._total = 0
        self._expected = 0
        self._deferred = set[str]()  # tags
        self._is_wanted = False  # a deferred message was refused since `on_capacity` was called last
        self.on_capacity: Callable[[], None] = _ignore
        self._is_contended = False  # a queue had to go beyond the slots, and who holds half of them must shrink
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Set the number of slots."""
        self._slots, self._most = slots, slots + slots // 4
        self._half = (slots + 1) // 2  # who holds fewer holds less than half
        self._large = sum(held >= self._half for held in self._held.values())
        self._is_contended = self._is_contended and self._is_shared
        self._offer()

    @property
    def open(self) -> int:
        """Return how many further calls may start, of any queue; below 1 there is room for certain queues at most."""
        return 0 if self._is_contended else self._slots - self._total

    def capacity_of(self, queue: str) -> int:
        """Return how many further calls of this queue may start, if no other's do; may be negative."""
        return max(self.open, min(self._half - self._held.get(queue, 0), self._most - self._total))

    def capacities_of(self, queues: Sequence[str]) -> tuple[Sequence[str], int]:
        """Return the queues that may start calls, and a number with which none of them alone exceeds its share."""
        capacities = {queue: self.capacity_of(queue) for queue in self._held}
        # Who holds nothing has the most room: thousands of queues need not be asked one by one.
        open_capacities = [self.capacity_of(""), *(capacity for capacity in capacities.values() if capacity > 0)]
        if open_capacities[0] <= 0:
            return (), 0
        return [queue for queue in queues if capacities.get(queue, 1) > 0], min(open_capacities)

    def expect(self, count: int) -> None:
        """Note that so many further messages were requested, of any queues: deferred ones may not have their slots.

        Negative: so many fewer.
        """
        self._expected += count
        if count < 0:
            self._offer()

    def take(self, queue: str) -> bool:
        """Note that a message was delivered, and has its slot. Returns whether none is left that any queue may have."""
        held = self._held[queue] = self._held.get(queue, 0) + 1
        self._total += 1
        if held == self._half:
            self._large += 1
        if self._total > self._slots:
            self._is_contended = self._is_shared
        return self._is_contended or self._total >= self._slots

    def defer(self, tag: str) -> None:
        """Note that a message was delivered that starts later."""
        self._deferred.add(tag)

    def is_deferred(self, tag: str) -> bool:
        """Return whether this delivered message has no slot yet."""
        return tag in self._deferred

    def begin(self, tag: str, queue: str) -> bool:
        """Return whether a delivered message may start now: always, unless it was deferred and has no slot."""
        if tag not in self._deferred:
            return True
        if self.capacity_of(queue) <= self._expected:
            self._is_wanted = True
            return False
        self._deferred.remove(tag)
        self.take(queue)
        return True

    def give_back(self, tag: str, queue: str) -> bool:
        """Give back the slot of a message. Returns whether queues may exceed their slots now that could not before."""
        if tag in self._deferred:
            self._deferred.remove(tag)
            self._offer()  # it stands before others no longer
            return False
        held = self._held[queue] - 1
        if held:
            self._held[queue] = held
        else:
            del self._held[queue]
        self._total -= 1
        is_small_again = held == self._half - 1
        self._large -= is_small_again
        self._is_contended = self._is_contended and self._is_shared
        if self._is_wanted:
            self._offer()
        return (is_small_again or self._total == self._most - 1) and self.open <= 0

    def _offer(self) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self.on_capacity()

    @property
    def _is_shared(self) -> bool:
        """Return whether some queue holds half of the slots, and is not alone."""
        return self._large > 0 and len(self._held) > 1


def _ignore() -> None:
    """Do nothing: no message waits for room."""


class PausedQueues:
    """The paused queues of a worker. Belongs to the thread of its loop. `names` is another object after each change.

    `on_end` is called when one is to be consumed again.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.on_end: list[Callable[[], None]] = []

    def __contains__(self, queue: str) -> bool:
        return queue in self.names

    def rest(self, queue: str) -> None:
        """Stop consuming the queue."""
        if queue not in self.names:
            self.names |= {queue}

    def end(self, queue: str) -> None:
        """Consume the queue again."""
        if queue in self.names:
            self.names -= {queue}
            for listener in self.on_end:
                listener()


@dataclass(slots=True)
class _Row:
    """The waiters of one caller's lane, by ticket. Those that have left are still among the places.

    `timer` runs as long as there are waiters.
    """

    places: list[tuple[int, _Place]] = field(default_factory=list)
    waiting: int = 0
    timer: asyncio.TimerHandle | None = None


class WaitQueue:
    """The waiters of all callers' lanes: first come, first served. Belongs to the running loop.

    Room comes when a call of this agent ends, which is told here; calls of the same user in other agents end unheard,
    so the first waiter tries by itself now and then.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rows: dict[CallerLane, _Row] = {}
        self._is_closed = False
        # Each call asks both: a function of our own would take as long as they do.
        self.ticket: Callable[[], int] = itertools.count().__next__
        """Return a place in the order of arrival, to be kept until the call is published."""
        self.is_awaited: Callable[[CallerLane], bool] = self._rows.__contains__
        """Return whether there are waiters for this caller's lane: then others queue up behind them."""

    async def wait(self, caller_lane: CallerLane, ticket: int, *, until: float) -> None:
        """Return when a try is worthwhile, at the latest at `until` by the loop's clock.

        A caller waits again if its try fails.

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
        rows = list(self._rows.values())
        self._rows.clear()
        for row in rows:
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
