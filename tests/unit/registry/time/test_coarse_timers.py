"""Timers that share ticks: they fire, late by at most a tick, and hold on to nothing."""

import asyncio
import gc
import weakref

import pytest

from support.waiting import wait_until
from toolfleet_registry.time.coarse_timers import TICK_SECONDS, CoarseTimeout, CoarseTimer, CoarseTimers, coarse_timers


async def test_callbacks_come_after_their_time() -> None:
    """None of them is early."""
    loop = asyncio.get_running_loop()
    asked = [TICK_SECONDS * part for part in (0.1, 0.9, 1.5, 3)]
    fired = list[tuple[float, float]]()
    began = loop.time()
    for seconds in asked:
        coarse_timers(loop).call_later(seconds, lambda it=seconds: fired.append((it, loop.time() - began)))

    await wait_until(lambda: len(fired) == len(asked), "all have fired")

    assert {it for it, _ in fired} == set(asked)
    assert all(came >= it for it, came in fired), fired


async def test_a_cancelled_timer_never_fires() -> None:
    """Not when it is cancelled by another timer of its tick either; to cancel twice, or too late, is nothing."""
    loop, fired = asyncio.get_running_loop(), list[int]()
    timers = CoarseTimers(loop)
    when = loop.time() + TICK_SECONDS / 2
    pair = list[CoarseTimer]()

    def fire(place: int) -> None:
        fired.append(place)
        pair[1 - place].cancel()

    pair.extend(timers.call_at(when, fire, place) for place in range(2))
    lost = timers.call_at(when, fired.append, -1)
    lost.cancel()
    lost.cancel()
    over = asyncio.Event()
    timers.call_at(when + TICK_SECONDS, over.set)

    await asyncio.wait_for(over.wait(), 10)
    pair[0].cancel()

    assert fired in ([0], [1])


async def test_a_callback_that_fails_keeps_no_other_from_firing() -> None:
    """The loop's handler is told of it, as of a timer of the loop's own."""
    loop, fired, told = asyncio.get_running_loop(), list[int](), list[BaseException]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    when = loop.time() + TICK_SECONDS / 2
    for number in range(3):
        coarse_timers(loop).call_at(when, fired.append, number)
        coarse_timers(loop).call_at(when, lambda: 1 // 0)

    await wait_until(lambda: len(fired) == len(told) == 3, "all have fired")

    assert (sorted(fired), {type(error) for error in told}) == ([0, 1, 2], {ZeroDivisionError})


async def test_a_cancelled_timer_holds_nothing() -> None:
    """What was to be called may hold its timer: it goes at once, and not when the collector comes."""

    class Owner:
        def __init__(self) -> None:
            self.timer = coarse_timers(asyncio.get_running_loop()).call_later(60, self.end)

        def end(self) -> None: ...

    gc.collect()
    gc.disable()
    try:
        owner = Owner()
        owner.timer.cancel()
        gone = weakref.ref(owner)
        del owner
        assert gone() is None
    finally:
        gc.enable()


def test_a_loop_that_has_ended_is_forgotten() -> None:
    """With timers that were still to fire."""

    async def set_one() -> "weakref.ref[asyncio.AbstractEventLoop]":
        coarse_timers(asyncio.get_running_loop()).call_later(60, print)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(set_one())
    gc.collect()

    assert loop() is None


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.05])
async def test_a_block_that_takes_longer_is_ended(seconds: float) -> None:
    """As by `asyncio.timeout`: what waits in it is cancelled, and the task goes on uncancelled."""
    with pytest.raises(TimeoutError), CoarseTimeout(seconds):
        await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_ends_in_time_is_left_alone() -> None:
    """Its own error comes out, and nothing comes after it."""
    with pytest.raises(KeyError), CoarseTimeout(TICK_SECONDS / 2):
        raise KeyError
    await asyncio.sleep(2 * TICK_SECONDS)


async def test_a_cancellation_from_outside_stays_one() -> None:
    """Also where the time is over in the same moment."""
    inside = asyncio.Event()

    async def wait() -> None:
        with CoarseTimeout(30):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await inside.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
