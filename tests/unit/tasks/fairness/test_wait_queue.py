"""Waiting for room in a share: in order, in time, and woken however the room comes."""

import asyncio
import itertools

import pytest

from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.errors import NotPublished
from toolfleet_tasks.fairness import WaitQueue

ADA, BOB = ("fast", "ada"), ("fast", "bob")


class Waiters:
    """Some who wait for a share, and in which order their turns came."""

    def __init__(self, wait_queue: WaitQueue) -> None:
        self.wait_queue = wait_queue
        self.came: list[int] = []
        self._numbers = itertools.count()

    def start(self, caller_lane: tuple[str, str | None] = ADA, *, seconds: float = 20) -> asyncio.Task[None]:
        number, ticket = next(self._numbers), self.wait_queue.ticket()
        return asyncio.create_task(self._wait(number, ticket, caller_lane, seconds))

    async def _wait(self, number: int, ticket: int, caller_lane: tuple[str, str | None], seconds: float) -> None:
        await self.wait_queue.wait(caller_lane, ticket, until=asyncio.get_running_loop().time() + seconds)
        self.came.append(number)


@pytest.fixture
async def waiters() -> Waiters:
    return Waiters(WaitQueue())


async def ticks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_turn_for_each_place_that_is_free(waiters: Waiters) -> None:
    """First come, first served, and each share has a row of its own."""
    tasks = [waiters.start() for _ in range(3)] + [waiters.start(BOB)]
    await ticks()
    waiters.wait_queue.free(ADA)
    await ticks()
    assert waiters.came == [0]
    waiters.wait_queue.free(BOB)
    waiters.wait_queue.free(ADA)
    waiters.wait_queue.free(ADA)
    await asyncio.gather(*tasks)

    assert waiters.came == [0, 3, 1, 2]
    assert not waiters.wait_queue.is_awaited(ADA)


async def test_who_tried_in_vain_keeps_its_place(waiters: Waiters) -> None:
    """It is before all that came after it, however late it comes back."""
    wait_queue = waiters.wait_queue
    early = wait_queue.ticket()
    tasks = [waiters.start() for _ in range(2)]
    await ticks()
    back = asyncio.create_task(wait_queue.wait(ADA, early, until=asyncio.get_running_loop().time() + 20))
    await ticks()
    wait_queue.free(ADA)
    await back

    assert waiters.came == []
    for _ in tasks:
        wait_queue.free(ADA)
    await asyncio.gather(*tasks)


async def test_whoever_is_first_asks_now_and_then(waiters: Waiters) -> None:
    """Also if nobody ever says that there is room."""
    tasks = [waiters.start() for _ in range(2)]
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_SECONDS)

    assert waiters.came == [0, 1]


async def test_a_turn_is_not_lost_with_who_had_it(waiters: Waiters) -> None:
    """Who is cancelled just then hands it on; who left before is passed over."""
    tasks = [waiters.start() for _ in range(4)]
    await ticks()
    tasks[0].cancel()
    await ticks()
    waiters.wait_queue.free(ADA)
    tasks[1].cancel()
    await ticks()
    assert waiters.came == [2]
    waiters.wait_queue.free(ADA)
    await tasks[3]

    assert waiters.came == [2, 3]
    assert not waiters.wait_queue.is_awaited(ADA)


async def test_waiting_has_an_end(waiters: Waiters) -> None:
    """At the deadline, and with the fleet; nobody comes in after that."""
    with pytest.raises(TimeoutError):
        await waiters.start(seconds=0.05)
    assert not waiters.wait_queue.is_awaited(ADA)
    waiting = waiters.start()
    await wait_until(lambda: waiters.wait_queue.is_awaited(ADA), "it waits")
    waiters.wait_queue.close()
    with pytest.raises(NotPublished, match="left"):
        await waiting
    with pytest.raises(NotPublished, match="left"):
        await waiters.start()


async def test_many_may_come_and_go(waiters: Waiters) -> None:
    """Ten thousand that are cancelled leave nothing behind."""
    tasks = [waiters.start() for _ in range(10_000)]
    await ticks()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert waiters.wait_queue._rows == {}
