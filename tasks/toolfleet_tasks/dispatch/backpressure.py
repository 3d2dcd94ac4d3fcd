"""Holds calls back in their agent until each may be published: it is its user's turn, the broker is there, and few are in flight."""

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from toolfleet_registry.errors import BrokerUnavailable, NotPublished
from toolfleet_registry.system import randomness
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.fairness import CallerLane, WaitQueue
from toolfleet_tasks.publish.publisher import Publisher

# Calls that wait in one agent until they may be published; further ones are `busy`. Each takes about 15 kB there. The more
# wait, the fewer a single user may have among them: at most as many as there is room left, and half of all.
_MOST_WAITING = 50_000
# How long a call waits, within its deadline, for a Redis or RabbitMQ that is away, before it ends as `fleet_unavailable`: a
# restart or a fail-over is over by then, most often, and nobody's patience is. It is counted from the first call that finds
# it away: once that long is over, each further call ends within some three seconds, after one more try.
_PATIENCE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0  # seconds, before a broker is tried again that is there and takes nothing

_ONE_TRY_SECONDS = 3.0  # by then it has been tried again
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


@dataclass(slots=True)
class WaitingCalls:
    """The number of calls that wait in an agent, at most `limit`, by caller."""

    limit: int
    total: int = 0
    _of: Counter[CallerLane] = field(default_factory=Counter)

    def enter(self, caller_lane: CallerLane) -> bool:
        """Count one more call, and return whether it may wait.

        A user has at most as many as there is room left, so that others always find some.
        """
        if self._of[caller_lane] >= self.limit - self.total:
            return False
        self._of[caller_lane] += 1
        self.total += 1
        return True

    def leave(self, caller_lane: CallerLane) -> None:
        """One waits no longer."""
        self.total -= 1
        self._of[caller_lane] -= 1
        if not self._of[caller_lane]:
            del self._of[caller_lane]


class Backpressure:
    """The conditions that the calls of one agent wait for. Belongs to the running loop."""

    def __init__(self, publisher: Publisher, wait_queue: WaitQueue) -> None:
        self.wait_queue = wait_queue
        self.window = PublishWindow(publisher.most_in_flight)
        self.crowd = WaitingCalls(_MOST_WAITING)
        self.patience_seconds = _PATIENCE_SECONDS
        self.loop = asyncio.get_running_loop()
        self._publisher = publisher
        self._pause = 0.0
        self._paused_until = 0.0
        self._away_since: float | None = None

    def close(self) -> None:
        """Tell all waiting calls that the fleet was left."""
        self.wait_queue.close()
        self.window.close()

    @property
    def is_there(self) -> bool:
        """Whether the broker can be reached, as far as is known."""
        return self._publisher.is_ready

    @property
    def is_open(self) -> bool:
        """Whether the broker is worth an attempt now."""
        return self._publisher.is_ready and not (self._pause and self.loop.time() < self._paused_until)

    async def opened(self) -> None:
        """Wait until then. Has no deadline. Raises `NotPublished` when the fleet is left."""
        while not self.is_open:
            await self._publisher.ready()
            rest = self._paused_until - self.loop.time()
            if self._pause and rest > 0:
                await asyncio.sleep(rest)

    def succeeded(self) -> None:
        """The broker has answered: it is there."""
        self._pause, self._away_since = 0.0, None

    def patient_until(self) -> float:
        """Return until when a call waits for the broker: it has been away from the first call that met that.

        Calls that come when it has been away for longer than that wait for one more try only.
        """
        now = self.loop.time()
        self._away_since = now if self._away_since is None else self._away_since
        return max(self._away_since + self.patience_seconds, now + min(self.patience_seconds, _ONE_TRY_SECONDS))

    def failed(self) -> None:
        """Pause: the broker is there and takes nothing, so this agent stops trying for a growing time."""
        if self.is_open:  # else others have said so
            self._pause = min(self._pause * 2 or _FIRST_PAUSE, _LONGEST_PAUSE)
            self._paused_until = self.loop.time() + self._pause * randomness.uniform(
                0.75, 1.25
            )  # agents must not ask in step


class Hold:
    """One call's way through the backpressure, from before its first try until `end`, `until` its deadline by the loop's clock.

    `waits`: for its turn in its user's limit; else it is told that there is none. `is_sent`: it may have been published
    already, so that nothing but its deadline ends its waiting.
    """

    __slots__ = ("_away", "_back", "_gives_up_at", "_had_turn", "_has_turn", "_is_counted", "_is_sent", "_needs_turn", "_ticket", "caller_lane", "until", "waits")  # fmt: skip

    def __init__(
        self, back: Backpressure, caller_lane: CallerLane, *, until: float, waits: bool, is_sent: bool = False
    ) -> None:
        self.caller_lane = caller_lane
        self.until = until
        self._back = back
        self.waits = waits
        self._is_sent = is_sent
        self._ticket = back.wait_queue.ticket()
        self._needs_turn = self._has_turn = self._had_turn = self._is_counted = False
        self._away: NotPublished | None = None
        self._gives_up_at = 0.0

    async def admitted(self) -> Refusal | None:
        """Return with a place in the window, which `leave` gives back; or the refusal, if too many wait already.

        Raises `TimeoutError` at the deadline, and `NotPublished` where the broker was away for too long, or the fleet is left.
        """
        back = self._back
        if self._may_go() and back.is_open and back.window.take():
            return None
        if (refusal := self.crowded()) is not None:
            return refusal
        while True:
            if not self._may_go():
                await back.wait_queue.wait(self.caller_lane, self._ticket, until=self.until)
                self._has_turn = self._had_turn = True
            await self._broker()
            await back.window.enter(self.caller_lane, until=self.until)
            if self._may_go() and back.is_open:
                return None
            back.window.leave()

    def crowded(self) -> Refusal | None:
        """Have the call wait in its agent; the refusal, if too many do already."""
        if not (self._is_counted or self._is_sent):
            if not self._back.crowd.enter(self.caller_lane):
                return Refusal("crowd", count=self._back.crowd.total)
            self._is_counted = True
        return None

    def leave(self) -> None:
        """The try is over."""
        self._back.window.leave()

    def awaits_turn(self) -> bool:
        """Return whether the call waits for its turn, after its limit refused it."""
        self._needs_turn, self._has_turn, self._gives_up_at = True, False, 0.0
        return self.waits

    def tries_again(self, error: NotPublished) -> bool:
        """Return whether a sure failure that passes is worth another attempt, in time."""
        if not (isinstance(error, BrokerUnavailable) and error.passes):
            return False
        self._away = error
        if self._back.is_there:  # it has answered, and takes nothing
            self._gives_up_at = self._gives_up_at or self._patient_until()
        self._back.failed()
        return self._back.loop.time() < (self._gives_up_at or self.until)

    def end(self) -> None:
        """End the wait, with any outcome."""
        if self._is_counted:
            self._back.crowd.leave(self.caller_lane)
        if self._had_turn:
            self._back.wait_queue.free(self.caller_lane)  # others may have room, too

    def _may_go(self) -> bool:
        return self._has_turn or not (
            self.waits and (self._needs_turn or self._back.wait_queue.is_awaited(self.caller_lane))
        )

    async def _broker(self) -> None:
        """Wait for the broker, with what patience is left; with that of its first try for one that was there, and took nothing."""
        back = self._back
        if back.is_open:
            return
        try:
            async with asyncio.timeout_at(self._gives_up_at or self._patient_until()):
                await back.opened()
        except TimeoutError:
            raise self._away or BrokerUnavailable("it does not answer", passes=True) from None

    def _patient_until(self) -> float:
        return self.until if self._is_sent else min(self._back.patient_until(), self.until)
