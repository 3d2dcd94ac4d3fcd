"""All that is judged of a call before it is published: what comes out is a call, or its result with one audit line."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from support.owls import echo
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts import PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.eval_gate import GateDecision
from toolfleet_tasks.calls.prepare import CallPreparation, Step

ADA = Caller(user_id="ada", permission="owner")
GUEST = Caller(user_id="gus")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


class Gate:
    """Blocks whatever it is asked about."""

    async def check(self, tool: object, ctx: object) -> GateDecision:
        return GateDecision(approved=False)


@pytest.fixture
async def preparation(redis: Redis, redis_url: str) -> AsyncIterator[CallPreparation]:
    """An agent's, with a gate."""
    module = ModuleServer("owls")
    module.add("count", echo, input_schema=SCHEMA)
    module.add("adopt", echo, requires_gate=True, timeout_seconds=5)
    with serve(module) as served:
        settings = Settings(redis_url=redis_url, module_services={"owls": served.url})
        async with ToolFleet(settings=settings, gate=Gate()) as fleet:
            await fleet.modules.refresh()
            yield (await fleet._sessions.opened()).preparation


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"tool_name": "owls"}, "invalid_tool_name"),
        ({"tool_name": "hawks.count"}, "unknown_module"),
        ({"tool_name": "owls.sing"}, "unknown_tool"),
        ({"caller": GUEST}, "permission_denied"),
        ({"arguments": {"n": "x"}}, "invalid_arguments"),
        ({"arguments": {"n": 1, "text": "x" * 2**21}}, "invalid_arguments"),
        ({"seconds": 0}, "expired"),
        ({"tool_name": "owls.adopt", "arguments": {}}, "blocked_by_gate"),
    ],
)
async def test_a_refused_call_has_its_result_and_one_line(
    preparation: CallPreparation, redis: Redis, asked: dict[str, Any], code: str
) -> None:
    """Whoever refuses it, and it is not published."""
    wish: dict[str, Any] = {"tool_name": "owls.count", "arguments": {"n": 1}, "caller": ADA, "seconds": 30} | asked
    caller, seconds = wish.pop("caller"), wish.pop("seconds")
    result = await preparation.prepare(ToolCall(**wish), caller, None, seconds)

    assert isinstance(result, ToolResult)
    assert (result.error_code, result.effect_state, await redis.xlen(Keys().audit)) == (code, "none", 1)


async def test_a_call_that_may_be_made_has_all_that_a_worker_needs(preparation: CallPreparation, redis: Redis) -> None:
    """Whose it is, which modules those reach, and how long it may take, in all and at its module."""
    before = time.time()
    call = ToolCall(tool_name="owls.count", arguments={"n": 1}, user_id="bob", idempotency_key="k")
    prepared = await preparation.prepare(call, ADA, None, 20)

    assert isinstance(prepared, PublishedCall)
    assert (prepared.tool_name, prepared.arguments, prepared.user_id) == ("owls.count", {"n": 1}, "ada")
    assert (prepared.caller.allowed_modules, prepared.lane, prepared.limit_seconds) == ("*", "fast", 30)
    assert (prepared.idempotency_key, prepared.job_id) == ("k", None)
    assert before + 19 < prepared.deadline_at < before + 120
    assert await redis.xlen(Keys().audit) == 0


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_jobs_step_is_put_to_its_own_gate(preparation: CallPreparation, is_refused: bool) -> None:
    """The agent's is not there. Its id, its user and its end are those that the job has given it."""

    def gate(tool: ToolDefinition, arguments: Mapping[str, Any]) -> ToolResult | None:
        return ToolResult.refused(tool.name, "blocked_by_gate", "No.") if is_refused else None

    step = Step("j.0", "j", user_id="bob", ends_by=time.time() + 3, gate=gate)
    prepared = await preparation.prepare(ToolCall(tool_name="owls.adopt"), ADA, step=step)

    if is_refused:
        assert isinstance(prepared, ToolResult)
        assert prepared.error == "No."
    else:
        assert isinstance(prepared, PublishedCall)
        assert (prepared.call_id, prepared.job_id, prepared.user_id) == ("j.0", "j", "bob")
        assert (prepared.deadline_at, prepared.limit_seconds) == (step.ends_by, 5)
