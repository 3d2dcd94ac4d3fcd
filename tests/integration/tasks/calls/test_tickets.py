"""What depends only on a caller and a tool is decided once, and again from the moment at which any of it changes."""

import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from support.modules.operated import Stage, staged
from toolfleet_registry.catalog.operator import Operator, operating
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_tasks.calls import prepare
from toolfleet_tasks.calls.eval_gate import Evaluation
from toolfleet_tasks.calls.prepare import CallPreparation

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
BIRDS = ADA.model_copy(update={"agent": "birds"})
PUSH = ToolCall(tool_name="git.push")


class Trail:
    """Writes nothing."""

    def refused(self, call: ToolCall, caller: Caller, result: ToolResult, *_: object) -> ToolResult:
        return result


class Bed:
    """An agent's preparation of calls, and an operator, who share nothing but Redis."""

    def __init__(self, stage: Stage, operator: Operator) -> None:
        self.stage, self.operator = stage, operator
        self.catalog, self.known = stage.agent, stage.agent._known
        self.preparation = self.fresh()

    def fresh(self) -> CallPreparation:
        """One that has decided nothing yet."""
        settings: Any = self.stage.settings
        gate, trail = Evaluation(None, settings), Trail()
        return CallPreparation(self.catalog, self.known, settings, gate=gate, limited=never, trail=trail)  # type: ignore[arg-type]

    async def profile(self, **fields: Any) -> None:
        """Have the agent `birds` have this profile alone."""
        self.catalog.profiles.take({"birds": AgentProfile(**fields)})

    async def lane(self, *slow: str) -> None:
        """Have the directory say that these modules are slow."""
        self.known.settings = self.known.settings.model_copy(update={"slow_modules": frozenset(slow)})


async def never(*_: object, **__: object) -> None:
    """Ask no limit."""


@pytest.fixture
async def bed(redis: Redis, redis_url: str) -> AsyncIterator[Bed]:
    async with staged(redis, redis_url, None) as stage, operating(stage.settings) as operator:
        await stage.agent.load()
        yield Bed(stage, operator)


async def decided(preparation: CallPreparation, caller: Caller) -> tuple[object, ...]:
    """What becomes of a call, with all that its tool and its caller decide about it."""
    prepared = await preparation.prepare(PUSH, caller, None, 30)
    if isinstance(prepared, ToolResult):
        return prepared.error_code, prepared.error
    assert isinstance(prepared, PublishedCall)
    terms = prepared.terms, prepared.approval, prepared.sensitive, prepared.hides_results
    return "published", prepared.caller, prepared.effect, prepared.lane, prepared.limit_seconds, *terms


Change = Callable[[Bed], Awaitable[object]]
KEY = {"type": "string", "x-sensitive": True}
SECRET = {"type": "object", "properties": {"key": KEY}}
CHANGES: dict[str, Change] = {
    "disabled": lambda bed: bed.operator.disable("git.push"),
    "enabled": lambda bed: bed.operator.enable("git.push"),
    "another effect": lambda bed: bed.stage.change("push", effect="once"),
    "pinned": lambda bed: bed.operator.pin("git"),
    "changed while pinned": lambda bed: bed.stage.change("push", effect="read", timeout_seconds=7),
    "unpinned": lambda bed: bed.operator.unpin("git"),
    "for admins": lambda bed: bed.stage.change("push", required_permission="admin"),
    "for users": lambda bed: bed.stage.change("push", required_permission="user"),
    "with secrets": lambda bed: bed.stage.change("push", input_schema=SECRET, output_schema=KEY),
    "limited": lambda bed: bed.stage.change("push", daily_limit=3),
    "approved by people": lambda bed: bed.stage.change("push", approval=True),
    "gone": lambda bed: bed.stage.offer("log"),
    "back": lambda bed: bed.stage.offer("log", "push"),
    "slow": lambda bed: bed.lane("git"),
    "a profile": lambda bed: bed.profile(tools=("git.*",)),
    "a narrowed profile": lambda bed: bed.profile(tools=("git.log",)),
    "a widened profile": lambda bed: bed.profile(permission_at_most="guest", tools=("git.*",)),
    "a lower level": lambda bed: bed.stage.change("push", required_permission="admin", effect="once"),
}


async def test_a_change_counts_from_the_moment_at_which_it_is_known(bed: Bed) -> None:
    """After each of them, calls are decided as by somebody who has decided nothing before."""
    seen = set[tuple[object, ...]]()
    for what, change in CHANGES.items():
        before = [await decided(bed.preparation, caller) for caller in (ADA, BIRDS)]
        await change(bed)
        await bed.catalog.load()
        for caller, earlier in zip((ADA, BIRDS), before, strict=True):
            now = await decided(bed.preparation, caller)
            assert now == await decided(bed.fresh(), caller), what
            seen |= {earlier[:1] + earlier[2:5], now[:1] + now[2:5]}

    assert {each[0] for each in seen} >= {"published", "permission_denied", "unknown_tool"}
    assert len(seen) >= 6


async def test_a_profile_that_is_narrowed_refuses_the_next_call(bed: Bed) -> None:
    """Without another look at anything."""
    await bed.profile(tools=("git.*",))
    assert (await decided(bed.preparation, BIRDS))[0] == "published"
    await bed.profile(tools=("git.log",))
    assert (await decided(bed.preparation, BIRDS))[0] == "permission_denied"


async def test_a_module_that_becomes_slow_is_slow_for_the_next_call(bed: Bed) -> None:
    """Its lane and its limit, by the directory alone."""
    before = await decided(bed.preparation, ADA)
    await bed.lane("git")
    after = await decided(bed.preparation, ADA)

    assert (before[3:5], after[3:5]) == (("fast", 30), ("slow", 120))


async def test_what_does_not_change_is_decided_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each caller; arguments are judged each time."""
    asked, found = list[str | None](), bed.catalog.found

    def noted(call: ToolCall, caller: Caller) -> Any:
        asked.append(caller.user_id)
        return found(call, caller)

    monkeypatch.setattr(bed.catalog, "found", noted)
    for caller in (ADA, ADA.model_copy(), ADA.model_copy(update={"user_id": "bob"})):
        for _ in range(3):
            assert (await decided(bed.preparation, caller))[0] == "published"
    refused = await bed.preparation.prepare(PUSH.model_copy(update={"arguments": "x"}), ADA, None, 30)

    assert asked == ["ada", "bob"]
    assert isinstance(refused, ToolResult)
    assert refused.error_code == "invalid_arguments"


async def test_a_refusal_is_never_kept(bed: Bed) -> None:
    """Nothing grows by names that a model makes up."""
    for number in range(5):
        await bed.preparation.prepare(ToolCall(tool_name=f"git.x{number}"), ADA, None, 30)

    assert len(bed.preparation._tickets) == 0


async def test_those_used_last_are_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is room for."""
    monkeypatch.setattr(prepare, "_MOST_TICKETS", 2)
    users = {name: ADA.model_copy(update={"user_id": name}) for name in ("ada", "bob", "cat")}
    for name in ("ada", "bob", "ada", "cat"):
        await decided(bed.preparation, users[name])

    assert [caller.user_id for caller, _ in bed.preparation._tickets] == ["ada", "cat"]


async def test_a_caller_that_cannot_be_looked_up_is_judged_each_time(bed: Bed) -> None:
    """One that somebody has made without a check."""
    odd = ADA.model_copy(update={"allowed_modules": {"git"}})

    assert (await decided(bed.preparation, odd))[0] == "published"
    assert len(bed.preparation._tickets) == 0


async def test_what_was_there_before_is_not_kept_alive(bed: Bed) -> None:
    """Of those who do not come again, either: a catalog of thousands of tools is large."""
    for name in ("ada", "bob"):
        await decided(bed.preparation, ADA.model_copy(update={"user_id": name}))
    before = weakref.ref(bed.catalog._state.tools)
    await bed.catalog.load()
    await decided(bed.preparation, ADA)
    gc.collect()

    assert before() is None
    assert len(bed.preparation._tickets) == 1


async def test_a_caller_whose_calls_are_refused_for_its_id_leaves_nothing(bed: Bed) -> None:
    """An id of any length would be kept for as long as the agent lives."""
    caller = ADA.model_copy(update={"user_id": "x" * (LONGEST + 1)})

    assert (await decided(bed.preparation, caller))[0] == "invalid_arguments"
    assert not bed.preparation._tickets
