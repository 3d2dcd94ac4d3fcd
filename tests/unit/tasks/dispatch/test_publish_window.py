"""The window of publishes in flight: bounded, users in turn, and no place is lost."""

import asyncio

import pytest

from toolfleet_registry.errors import NotPublished
from toolfleet_tasks.calls.dispatcher import PublishWindow

ADA, BOB = ("fast", "ada"), ("fast", "bob")
LATER = 20.0  # seconds


class Waiters:
    """Some who wait for a place, and in which order they got one."""

    def __init__(self, size: int = 1) -> None:
        self.window = PublishWindow(size)
        self.came: list[str] = []

    def start(
        self, name: str, caller_lane: tuple[str, str | None] = ADA, *, seconds: float = LATER
    ) -> asyncio.Task[None]:
        return asyncio.create_task(self._wait(name, caller_lane, seconds))

    async def _wait(self, name: str, caller_lane: tuple[str, str | None], seconds: float) -> None:
        await self.window.enter(caller_lane, until=asyncio.get_running_loop().time() + seconds)
        self.came.append(name)

    async def next(self) -> list[str]:
        """Who has come, when one place more was given back."""
        self.window.leave()
        await ticks()
        return self.came


async def ticks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_so_many_and_no_more() -> None:
    """Whoever comes then waits until one leaves."""
    waiters = Waiters(2)
    tasks = [waiters.start(name) for name in "abc"]
    await ticks()
    assert waiters.came == ["a", "b"]
    assert not waiters.window.take()
    assert await waiters.next() == ["a", "b", "c"]
    await asyncio.gather(*tasks)
    for _ in "bc":
        waiters.window.leave()

    assert [waiters.window.take() for _ in range(3)] == [True, True, False]


async def test_users_take_turns() -> None:
    """Who comes behind a thousand calls of another user waits for one of them; within a user the first is first."""
    waiters = Waiters(0)
    tasks = [waiters.start(f"ada-{number}") for number in range(4)]
    await ticks()
    tasks += [waiters.start("bob-0", BOB), waiters.start("bob-1", BOB)]
    await ticks()
    for _ in tasks:
        await waiters.next()

    assert waiters.came == ["ada-0", "bob-0", "ada-1", "bob-1", "ada-2", "ada-3"]


async def test_who_leaves_takes_no_place_along() -> None:
    """One who was cancelled while it waited is passed over, and one who was when its place had just come hands it on."""
    waiters = Waiters(0)
    tasks = [waiters.start(name) for name in "abc"]
    await ticks()
    tasks[0].cancel()
    await ticks()
    waiters.window.leave()
    tasks[1].cancel()
    await ticks()
    assert waiters.came == ["c"]
    assert await waiters.next() == ["c"]

    assert waiters.window.take()
    assert not waiters.window.take()


async def test_waiting_has_an_end() -> None:
    """At the deadline, and when the fleet is left."""
    waiters = Waiters(0)
    with pytest.raises(TimeoutError):
        await waiters.start("a", seconds=0.01)
    waiting = waiters.start("b")
    await ticks()
    waiters.window.close()
    with pytest.raises(NotPublished, match="left"):
        await waiting
