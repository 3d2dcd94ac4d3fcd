"""What calls wait for in their agent: their turn, the broker, a place; how many may wait, and for how long."""

import asyncio

import pytest

from support.waiting import wait_until
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import BrokerUnavailable, NotPublished
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.calls.dispatcher import Backpressure, Hold, WaitingCalls
from toolfleet_tasks.fairness import WaitQueue
from toolfleet_tasks.queues import CONTROL
from toolfleet_tasks.transport.publisher import Delivered

ADA, BOB = ("fast", "ada"), ("fast", "bob")


class Broker:
    """One that is there, or not, as a test says; nothing is ever published."""

    most_in_flight = 1

    def __init__(self) -> None:
        self._there = asyncio.Event()
        self._there.set()

    @property
    def is_ready(self) -> bool:
        return self._there.is_set()

    @is_ready.setter
    def is_ready(self, value: bool) -> None:
        if value:
            self._there.set()
        else:
            self._there.clear()

    async def ready(self) -> None:
        await self._there.wait()

    async def publish(
        self,
        call: PublishedCall,
        *,
        seconds: float,
        limit: int,
        needs_worker: bool = False,
        again: bool = False,
        follow: object = None,
    ) -> Refusal | None:
        raise NotImplementedError

    async def revoke(self, call_id: str) -> None:
        raise NotImplementedError

    async def republish(self, delivered: Delivered, *, delay: float, retries: int) -> None:
        raise NotImplementedError

    async def put(self, message: str, queue_name: str, *, seconds: float) -> None:
        raise NotImplementedError

    async def control(self, task: str, *args: str, queue: str = CONTROL, limit: int = 0) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Room:
    """A backpressure and its broker."""

    def __init__(self, *, most_waiting: int = 100, patience_seconds: float = 30) -> None:
        self.broker = Broker()
        self.wait_queue = WaitQueue()
        self.back = Backpressure(self.broker, self.wait_queue)
        self.back.crowd.limit, self.back.patience_seconds = most_waiting, patience_seconds

    def hold(
        self,
        caller_lane: tuple[str, str | None] = ADA,
        *,
        seconds: float = 20,
        waits: bool = True,
        is_sent: bool = False,
    ) -> Hold:
        until = asyncio.get_running_loop().time() + seconds
        return Hold(self.back, caller_lane, until=until, waits=waits, is_sent=is_sent)


def test_a_crowd_has_room_for_others() -> None:
    """A user alone fills half of it; then others find as much of what is left."""
    crowd, users = WaitingCalls(100), [("fast", str(number)) for number in range(4)]
    found = [sum(crowd.enter(user) for _ in range(200)) for user in users]
    for user, count in zip(users, found, strict=True):
        for _ in range(count):
            crowd.leave(user)

    assert found == [50, 25, 13, 6]
    assert (crowd.total, dict(crowd._of)) == (0, {})


async def test_beyond_the_crowd_a_call_is_told_at_once() -> None:
    """Those that wait keep their places, and each that leaves makes room for one."""
    room = Room(most_waiting=4)
    room.broker.is_ready = False
    holds = [room.hold() for _ in range(3)]
    waiting = [asyncio.create_task(hold.admitted()) for hold in holds[:2]]
    await wait_until(lambda: room.back.crowd.total == 2, "two wait")
    assert await holds[2].admitted() == Refusal("crowd", count=2)
    waiting[0].cancel()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    holds[0].end()
    assert room.back.crowd.total == 1
    room.broker.is_ready = True
    assert await waiting[1] is None
    holds[1].end()

    assert room.back.crowd.total == 0


async def test_who_waits_for_a_place_in_vain_for_its_turn_needs_none() -> None:
    """A call that meets a share in which others wait gives its place back, and stands in the row behind them."""
    room = Room()
    first, second = room.hold(waits=False), room.hold()
    assert await first.admitted() is None
    waiting = asyncio.create_task(second.admitted())
    await wait_until(lambda: room.back.window._rows, "it waits for a place")
    ahead = asyncio.create_task(room.wait_queue.wait(ADA, -1, until=asyncio.get_running_loop().time() + 20))
    await wait_until(lambda: room.wait_queue.is_awaited(ADA), "somebody waits for a turn")
    first.leave()
    other = room.hold(BOB)
    assert await other.admitted() is None  # the place is free again
    assert not waiting.done()
    room.wait_queue.free(ADA)
    await ahead
    other.leave()
    room.wait_queue.free(ADA)

    assert await waiting is None


async def test_patience_with_a_broker_that_is_away_has_an_end() -> None:
    """A call waits for so long; one that may have been published waits until its deadline."""
    room = Room(patience_seconds=0.05)
    room.broker.is_ready = False
    with pytest.raises(BrokerUnavailable):
        await room.hold().admitted()
    sent = asyncio.create_task(room.hold(is_sent=True).admitted())
    with pytest.raises(BrokerUnavailable):
        await room.hold(seconds=0.2).admitted()
    assert not sent.done()
    room.broker.is_ready = True

    assert await sent is None


async def test_a_broker_that_has_been_away_for_long_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is counted from the first call that met it away; a later one has one more try, until the broker has answered."""
    monkeypatch.setattr("toolfleet_tasks.calls.dispatcher._ONE_TRY_SECONDS", 0.01)
    room = Room(patience_seconds=3600)
    room.broker.is_ready = False
    first = asyncio.create_task(room.hold().admitted())
    await wait_until(lambda: room.back._away_since is not None, "the first one waits")
    room.back._away_since = room.back.loop.time() - 3600
    with pytest.raises(BrokerUnavailable):
        await room.hold().admitted()
    assert not first.done()
    room.broker.is_ready = True
    assert await first is None
    room.back.succeeded()

    assert room.back.patient_until() > room.back.loop.time() + 3000


async def test_a_broker_that_takes_nothing_is_left_alone_by_all() -> None:
    """After one failure nobody tries it for a moment, which grows; one success ends that."""
    room = Room()
    error = BrokerUnavailable("LOADING", passes=True)
    pauses = []
    for _ in range(3):
        hold = room.hold()
        assert await hold.admitted() is None
        hold.leave()
        assert hold.tries_again(error)
        assert not room.back.is_open
        pauses.append(room.back._pause)
    room.back.succeeded()

    assert pauses == [0.2, 0.4, 0.8]
    assert room.back.is_open
    assert not room.hold().tries_again(BrokerUnavailable("OOM", passes=False))
    assert not room.hold().tries_again(NotPublished("the fleet was left"))
