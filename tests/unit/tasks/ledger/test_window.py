"""Asking the ledger about many ends at once: in turn, each with its time, and none waits for a ledger that is silent."""

import asyncio

import pytest

from toolfleet_tasks.ledger import ledger
from toolfleet_tasks.ledger.ledger import LedgerWindow


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> LedgerWindow:
    monkeypatch.setattr(ledger, "_MOST_AT_ONCE", 2)
    return LedgerWindow(lambda: float("-inf"))


async def test_time_counts_from_the_place(window: LedgerWindow) -> None:
    """Who waits for a place has lost nothing of its time."""
    release, began = asyncio.Event(), 0

    async def ask(seconds: float) -> None:
        nonlocal began
        async with window.place(seconds):
            began += 1
            await release.wait()

    first = [asyncio.create_task(ask(20)) for _ in range(2)]
    later = [asyncio.create_task(ask(20)) for _ in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert began == 2
    release.set()
    await asyncio.gather(*first, *later)

    assert began == 6


async def test_one_silence_is_enough(window: LedgerWindow) -> None:
    """Those that waited while others had no answer have none; whoever comes later asks again."""
    began = 0

    async def ask() -> None:
        nonlocal began
        async with window.place(0.05):
            began += 1
            await asyncio.Event().wait()

    ends = await asyncio.gather(*(ask() for _ in range(20)), return_exceptions=True)
    async with window.place(20):
        pass

    assert {type(end) for end in ends} == {TimeoutError}
    assert began == 2


async def test_a_redis_that_is_heard_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its answers come, though not yet ours, nobody gives up; but not for ever."""
    monkeypatch.setattr(ledger, "_LONGEST_SECONDS", 0.5)
    clock = asyncio.get_running_loop().time
    window, began_at = LedgerWindow(clock), clock()
    with pytest.raises(TimeoutError):
        async with window.place(0.05):
            await asyncio.Event().wait()

    assert clock() - began_at >= 0.5
