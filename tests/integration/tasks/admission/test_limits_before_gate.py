"""An agent's gate is asked about no call that its user's limits refuse anyway. With each transport, and a worker by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from support.owls import echo
from support.programs.closed_port import closed_port
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, GateDecision, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import ToolContext
from toolfleet_tasks.client.allowance import refusal_now
from toolfleet_tasks.limits import JUDGE, Limit
from toolfleet_tasks.redis_connection import PipelinedConnection

pytestmark = pytest.mark.usefixtures("same_day")

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
RARE, FREE, OPEN, DEAR = (ToolCall(tool_name=f"owls.{name}") for name in ("rare", "free", "open", "dear"))
YES, NO = GateDecision(approved=True), GateDecision(approved=False, reason="Not before lunch.")


@dataclass
class Gate:
    """Says what `answer` does, once `opened` is set; `asked` has the tools that it was asked about."""

    answer: Callable[[], GateDecision] = lambda: YES
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    async def check(self, tool: Any, ctx: ToolContext) -> GateDecision:
        self.asked.append(tool.name)
        await self.opened.wait()
        return self.answer()


@pytest.fixture
def gate() -> Gate:
    gate = Gate()
    gate.opened.set()
    return gate


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("rare", echo, requires_gate=True, daily_limit=1)
    module.add("dear", echo, requires_gate=True, cost="expensive")
    module.add("free", echo, requires_gate=True)
    module.add("open", echo, daily_limit=9)
    with serve(module) as served:
        yield served


@pytest.fixture
def settings(make: Callable[..., Settings]) -> Settings:
    return make(cost_budgets={"expensive": 1})


@pytest.fixture
async def fleet(settings: Settings, gate: Gate) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        yield fleet


async def submitted(fleet: ToolFleet, call: ToolCall) -> ToolResult | None:
    """The result of a call that was not published, `None` for one that was."""
    handle = await fleet.submit(call, ADA)
    return await handle.result(PATIENCE_SECONDS) if await handle.status() == "done" else None


async def used(fleet: ToolFleet, call: ToolCall) -> int:
    return (await fleet.remaining(ADA)).tools[call.tool_name].used


@pytest.mark.parametrize("call", [RARE, DEAR], ids=["daily limit", "budget"])
async def test_an_exhausted_user_costs_the_gate_nothing(fleet: ToolFleet, gate: Gate, call: ToolCall) -> None:
    """Nor a person who is asked by it: the call is `rate_limited`, as it would be without a gate."""
    assert await submitted(fleet, call) is None

    result = await submitted(fleet, call)
    assert result is not None
    assert (result.error_code, result.effect_state, result.retryable) == ("rate_limited", "none", True)
    assert "Try again at" in (result.error or "")
    assert gate.asked == [call.tool_name]


async def test_what_the_gate_blocks_counts_nowhere(fleet: ToolFleet, gate: Gate, worker: HandWorker) -> None:
    """So the day's only call is still there when the gate lets it pass."""
    gate.answer = lambda: NO
    for _ in range(2):
        result = await submitted(fleet, RARE)
        assert result is not None
        assert result.error_code == "blocked_by_gate"
    assert await used(fleet, RARE) == 0

    gate.answer = lambda: YES
    assert await submitted(fleet, RARE) is None
    assert await used(fleet, RARE) == 1


async def test_an_agent_that_dies_while_its_gate_is_asked_has_counted_nothing(
    fleet: ToolFleet, gate: Gate, worker: HandWorker
) -> None:
    """The look takes nothing that somebody would have to give back."""
    gate.opened.clear()
    calling = asyncio.create_task(fleet.call(RARE, ADA))
    await wait_until(lambda: gate.asked, "the gate is asked")
    calling.cancel()
    await asyncio.wait([calling], timeout=PATIENCE_SECONDS)

    assert await worker.queued() == []
    assert await used(fleet, RARE) == 0


async def test_of_two_that_pass_the_gate_at_once_one_has_the_last_place(
    fleet: ToolFleet, gate: Gate, worker: HandWorker
) -> None:
    """Calls are counted where they are published, so that a look beforehand lets nobody in."""
    gate.opened.clear()
    calling = [asyncio.create_task(submitted(fleet, RARE)) for _ in range(2)]
    await wait_until(lambda: len(gate.asked) == 2, "the gate is asked twice")
    gate.opened.set()

    results = await asyncio.gather(*calling)
    assert [result.error_code for result in results if result is not None] == ["rate_limited"]
    assert len(await worker.queued()) == 1


async def test_a_repeat_joins_the_first_call_though_the_limit_is_reached(
    fleet: ToolFleet, gate: Gate, worker: HandWorker
) -> None:
    """By its idempotency key: it is no call of its own, and counts nowhere."""
    keyed = RARE.model_copy(update={"idempotency_key": "k"})
    first, second = await fleet.submit(keyed, ADA), await fleet.submit(keyed, ADA)

    assert second.id == first.id
    assert await used(fleet, RARE) == 1


async def test_calls_without_a_gate_or_without_limits_cost_no_look(fleet: ToolFleet, redis_url: str) -> None:
    """Redis is asked once for each, in the step that publishes it."""
    async with Redis.from_url(redis_url) as redis:
        await redis.script_flush()
        for call in (FREE, OPEN):
            assert await submitted(fleet, call) is None
        assert await redis.script_exists(JUDGE.digest) == [False]

        assert await submitted(fleet, RARE) is None
        assert await redis.script_exists(JUDGE.digest) == [True]


async def test_a_look_that_nobody_answers_lets_the_gate_be_asked() -> None:
    """Within its time: whoever would publish the call finds out the same."""
    line = PipelinedConnection(connection_factory(f"redis://127.0.0.1:{closed_port()}/0"), name="away")
    limits = [Limit("owls.rare", "toolfleet:limit:x", 1, 0)]
    line.start()
    try:
        assert await refusal_now(line, "owls.rare", limits, intent=None, seconds=0.05) is None
    finally:
        await line.aclose()
