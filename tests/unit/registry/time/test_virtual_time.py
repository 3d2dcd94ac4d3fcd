"""Time and chance are a simulation's where they are replaced: nothing waits for the real ones."""

import asyncio
from typing import Any

import pytest

from support.clocks import BEGINS_AT, run_virtually
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import randomness
from toolfleet_registry.time import fleet_clock, machine_clock
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Evaluation
from toolfleet_tasks.dispatch.backpressure import Backpressure, Hold
from toolfleet_tasks.fairness.wait_queue import WaitQueue


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
    back = Backpressure(broker, WaitQueue(), Settings(broker_patience_seconds=3600))
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
    await asyncio.sleep(5)
    when = fleet_clock.now(), fleet_clock.suspend_aware(), machine_clock.monotonic(), machine_clock.wall()
    return (*when, randomness.uniform(0, 1), randomness.random(), randomness.randrange(100), randomness.uuid4())


def test_what_was_random_can_be_had_again() -> None:
    """With the same seed; and all clocks show the time that has passed on the loop."""
    (first, _), (second, _), (third, _) = (run_virtually(draws(), seed=seed) for seed in (1, 1, 2))

    assert first == second != third
    assert first[:4] == (BEGINS_AT + 5, 5, 5, BEGINS_AT + 5)
