"""Timers that share those of the loop, and time and chance that are a simulation's."""

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.clocks import BEGINS_AT, pass_virtually, run_virtually
from support.there import there
from support.waiting import wait_until
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock, randomness
from toolfleet_registry.system.shared_timers import SharedTimeout, SharedTimer, SharedTimers, shared_timers
from toolfleet_tasks.calls.dispatcher import Backpressure, Hold
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Evaluation
from toolfleet_tasks.fairness import WaitQueue


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test on a loop that waits for none of its timers."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        run_virtually(test(**given))

    return run


@virtually
async def test_callbacks_come_after_their_time_and_in_order() -> None:
    """None of them is early, whether it falls due in this second or in a later one."""
    loop = asyncio.get_running_loop()
    asked = [1.4, 0.02, 0.9, 1.2, 0.02]
    fired = list[tuple[float, float]]()
    began = loop.time()
    for seconds in asked:
        shared_timers(loop).call_later(seconds, lambda it=seconds: fired.append((it, loop.time() - began)))

    await wait_until(lambda: len(fired) == len(asked), "all have fired")

    assert [it for it, _ in fired] == sorted(asked)
    assert all(came >= it for it, came in fired), fired


@pytest.mark.parametrize("seconds", [0.02, 1.1])
@virtually
async def test_a_cancelled_timer_never_fires(seconds: float) -> None:
    """Not when it is cancelled by another timer of its moment either; to cancel twice, or too late, is nothing."""
    loop, fired = asyncio.get_running_loop(), list[int]()
    timers = SharedTimers(loop)
    when = loop.time() + seconds
    pair = list[SharedTimer]()

    def fire(place: int) -> None:
        fired.append(place)
        pair[1 - place].cancel()

    pair.extend(timers.call_at(when + place / 100, fire, place) for place in range(2))
    lost = timers.call_at(when, fired.append, -1)
    lost.cancel()
    lost.cancel()
    over = asyncio.Event()
    timers.call_at(when + 0.05, over.set)

    await over.wait()
    pair[0].cancel()

    assert fired == [0]


@virtually
async def test_what_was_cancelled_leaves_few_timers_in_the_loop() -> None:
    """One for a second, which the next timer of that second finds, and a bounded number of them. Nor do those that are left stop for it."""
    loop = asyncio.get_running_loop()
    when, over = loop.time() + 1.1, asyncio.Event()

    def in_loop() -> int:
        return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined] # it has no other face

    for _ in range(50):
        shared_timers(loop).call_at(when, print).cancel()
    assert in_loop() == 1
    kept = [shared_timers(loop).call_later(2000 + number, print) for number in range(300)]
    for number in range(3000):
        shared_timers(loop).call_later(10000 + number, print).cancel()
    assert len(kept) < in_loop() <= 2 * len(kept)
    for timer in kept:
        timer.cancel()
    shared_timers(loop).call_at(when, over.set)

    await over.wait()
    assert loop.time() == when


@virtually
async def test_a_callback_that_fails_keeps_no_other_from_firing() -> None:
    """The loop's handler is told of it, as of a timer of the loop's own."""
    loop, fired, told = asyncio.get_running_loop(), list[int](), list[BaseException]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    when = loop.time() + 0.02
    for number in range(3):
        shared_timers(loop).call_at(when, fired.append, number)
        shared_timers(loop).call_at(when, lambda: 1 // 0)

    await wait_until(lambda: len(fired) == len(told) == 3, "all have fired")

    assert (fired, {type(error) for error in told}) == ([0, 1, 2], {ZeroDivisionError})


async def test_a_cancelled_timer_holds_nothing() -> None:
    """What was to be called may hold its timer: it goes at once, and not when the collector comes."""

    class Owner:
        def __init__(self) -> None:
            self.timer = shared_timers(asyncio.get_running_loop()).call_later(60, self.end)

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
        shared_timers(asyncio.get_running_loop()).call_later(60, print)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(set_one())
    gc.collect()

    assert loop() is None


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.05])
@virtually
async def test_a_block_that_takes_longer_is_ended(seconds: float) -> None:
    """As by `asyncio.timeout`: what waits in it is cancelled, and the task goes on uncancelled."""
    with pytest.raises(TimeoutError), SharedTimeout(seconds):
        await asyncio.Event().wait()

    task = there(asyncio.current_task())
    assert task.cancelling() == 0


@virtually
async def test_a_block_that_ends_in_time_is_left_alone() -> None:
    """Its own error comes out, and nothing comes after it."""
    with pytest.raises(KeyError), SharedTimeout(0.02):
        raise KeyError
    await pass_virtually(0.05)  # it would come now


async def test_a_cancellation_from_outside_stays_one() -> None:
    """Also where the time is over in the same moment."""
    inside = asyncio.Event()

    async def wait() -> None:
        with SharedTimeout(30):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await inside.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


class Away:
    """A publisher whose broker never comes."""

    most_in_flight = 1
    is_ready = False

    async def ready(self) -> None:
        await asyncio.Event().wait()


class Silent:
    """An agent's gate that never answers."""

    async def check(self, tool: object, ctx: object) -> Any:
        await asyncio.Event().wait()


async def patience() -> NotPublished:
    broker: Any = Away()
    back = Backpressure(broker, WaitQueue())
    back.patience_seconds = 3600
    hold = Hold(back, ("fast", "ada"), until=asyncio.get_running_loop().time() + 7200, waits=True)
    with pytest.raises(NotPublished) as raised:
        await hold.admitted()
    return raised.value


def test_an_hour_of_patience_with_a_broker_takes_no_time() -> None:
    """On a virtual loop; and no timer of the real one is waited for."""
    _, seconds = run_virtually(patience())

    assert seconds == 3600


def test_a_gate_that_is_silent_has_its_two_seconds() -> None:
    """By the loop, and by the clock that measures what it took."""
    gate = Evaluation(Silent(), Settings())
    tool = ToolDefinition(name="owls.count", requires_gate=True)
    refusal, seconds = run_virtually(gate.refusal(tool, {}, None, NOTHING_MORE, seconds=30))

    assert (refusal, seconds) == (None, 2)  # it fails open


async def draws() -> tuple[object, ...]:
    await pass_virtually(5)
    when = fleet_clock.now(), fleet_clock.suspend_aware(), machine_clock.monotonic(), machine_clock.wall()
    return (*when, randomness.uniform(0, 1), randomness.random(), randomness.randrange(100), randomness.uuid4())


def test_what_was_random_can_be_had_again() -> None:
    """With the same seed; and all clocks show the time that has passed on the loop."""
    (first, _), (second, _), (third, _) = (run_virtually(draws(), seed=seed) for seed in (1, 1, 2))

    assert first == second != third
    assert first[:4] == (BEGINS_AT + 5, 5, 5, BEGINS_AT + 5)
