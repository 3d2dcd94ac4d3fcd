"""What runs and threads may call in all, by their agent's profile. With a worker by hand."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from support.owls import echo
from support.waiting import PATIENCE_SECONDS
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.agents.profile_rules import ToolRules
from toolfleet_registry.contracts import PublishedCall, RetryTerms, Terms
from toolfleet_registry.contracts.limits import CallTotal
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.limits import Within, limits_of
from toolfleet_workers.execution.execute import refusal_of

pytestmark = pytest.mark.usefixtures("same_day")

DAY = 86_400
ADA, BOB = (
    Caller(user_id=name, permission="owner", allowed_modules="*", agent="production") for name in ("ada", "bob")
)
SUB = ADA.model_copy(update={"agent": "production/research"})
COUNT, FEED, ASK, FREE = (
    ToolCall(tool_name=f"owls.{name}", arguments={"n": 1}) for name in ("count", "feed", "ask", "free")
)
UNREACHABLE = ToolResult.failed("owls.count", "module_unreachable", "away", effect_state="none", retryable=True)
AGENTS: dict[str, Any] = {
    "production": {
        "middleware": [
            {"name": "tool_call_limit", "run_limit": 2, "tools": ["owls.count", "owls.feed"], "exit_behavior": "end"},
            {"name": "tool_call_limit", "thread_limit": 3, "tools": ["owls.ask"], "exit_behavior": "error"},
            {"name": "tool_call_limit", "run_limit": 0, "tools": ["owls.never"]},
            {"name": "limits", "daily_limit": 1, "tools": ["owls.daily"]},
            {"name": "tool_retry", "max_retries": 4, "tools": ["owls.count"]},
        ]
    },
    "research": {"mode": "subagent"},
}

Make = Callable[..., Settings]


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    for name in ("count", "feed", "ask", "never", "free"):
        module.add(name, echo, effect="read")
    module.add("daily", echo, daily_limit=5)
    with serve(module) as served:
        yield served


@pytest.fixture
def broker() -> str:
    """Which one: the scripts that count are the same for all."""
    return "here"


@pytest.fixture
def make(make: Make) -> Make:
    """Settings of a fleet whose agents have profiles."""
    return partial(make, agents=AGENTS)


def run(run_id: str | None, thread: str | None = None) -> Conversation:
    return Conversation(run_id=run_id, conversation_id=thread)


def at_limit(result: ToolResult, *, ends_run: bool = False) -> tuple[str, str]:
    """What it says, and what the model is to do, once all else was found right."""
    assert (result.error_code, result.effect_state, result.retryable, result.retry_after_seconds) == (
        "rate_limited",
        "none",
        False,
        None,
    ), result
    assert result.ends_run == ends_run
    return result.error or "", result.hint or ""


@pytest.mark.parametrize("broker", ["here", "elsewhere"])
async def test_a_run_has_so_many_calls_of_its_tools_together(make: Make, worker: HandWorker) -> None:
    """Whoever's subagent makes them; other runs and other users have their own, and other tools none."""
    async with ToolFleet(settings=make()) as fleet:
        for conversation, caller in ((run("one"), ADA), (run("two"), ADA), (run("one"), BOB)):
            await fleet.submit(COUNT, caller, conversation=conversation)
            await fleet.submit(FEED, SUB if caller is ADA else caller, conversation=conversation)
            text, hint = at_limit(await fleet.call(COUNT, caller, conversation=conversation))
            assert text == "Tool call refused: its agent may make 2 calls of this kind in a run, and has made them."
            assert hint.endswith("answer with what you have now.")
        await fleet.submit(FREE, ADA, conversation=run("one"))
        assert len(await worker.queued()) == 7


async def test_a_thread_counts_over_all_of_its_runs(make: Make, worker: HandWorker) -> None:
    """As long as they name the same conversation."""
    async with ToolFleet(settings=make()) as fleet:
        for number in range(3):
            await fleet.submit(ASK, ADA, conversation=run(f"run-{number}", "thread"))
        refused = await fleet.call(ASK, ADA, conversation=run("another", "thread"))
        text, hint = at_limit(refused, ends_run=True)
        assert "3 calls of this kind in a conversation" in text
        assert hint.endswith("the run ends here, as an error.")
        await fleet.submit(ASK, ADA, conversation=run(None, "another thread"))
        assert len(await worker.queued()) == 4


@pytest.mark.parametrize(("call", "name"), [(COUNT, "run_id"), (ASK, "conversation_id")])
async def test_a_call_must_say_what_it_is_a_part_of(make: Make, worker: HandWorker, call: ToolCall, name: str) -> None:
    """Else its limit would count nothing: it is refused, and says what is missing."""
    async with ToolFleet(settings=make()) as fleet:
        for conversation in (None, Conversation(), run("", "")):
            text, hint = at_limit(await fleet.call(call, ADA, conversation=conversation))
            assert name in text
            assert f"Conversation({name}=…)" in hint
        assert await worker.queued() == []


async def test_a_limit_of_none_is_one(make: Make, worker: HandWorker) -> None:
    """With 0 the first call is one too many."""
    async with ToolFleet(settings=make()) as fleet:
        result = await fleet.call(ToolCall(tool_name="owls.never"), ADA, conversation=run("one"))
        assert at_limit(result)[1].endswith("go on without it.")
        assert await worker.queued() == []


@pytest.mark.parametrize("broker", ["here", "elsewhere"])
async def test_a_call_that_did_nothing_is_given_back_to_its_run(make: Make, worker: HandWorker) -> None:
    """As is one that is taken back before it began; one that may have happened is not."""
    async with ToolFleet(settings=make()) as fleet:
        for result in (UNREACHABLE, None, None):
            await fleet.submit(COUNT, ADA, conversation=run("one"))
            claim = await worker.take()
            assert await worker._ledger.take(claim, claim.call.terms) is None
            await worker.finish(claim, result)
        assert "2 calls of this kind in a run" in at_limit(await fleet.call(COUNT, ADA, conversation=run("one")))[0]
        handle = await fleet.submit(COUNT, ADA, conversation=run("two"))
        await handle.cancel()
        await handle.result(PATIENCE_SECONDS)
        assert (await fleet.remaining(ADA, conversation=run("two"))).totals["owls.count"].used == 0


async def test_a_repeat_that_joins_counts_once_in_its_run(make: Make, worker: HandWorker) -> None:
    """Also when the run has no calls left."""
    async with ToolFleet(settings=make()) as fleet:
        calls = [COUNT.model_copy(update={"idempotency_key": key}) for key in "ababa"]
        handles = [await fleet.submit(call, ADA, conversation=run("one")) for call in calls]
        assert len({handle.id for handle in handles}) == len(await worker.queued()) == 2


async def test_what_a_run_has_left_can_be_read(make: Make) -> None:
    """Of the run and the thread that are named, by tool; a profile's daily limit is the tool's."""
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(COUNT, ADA, conversation=run("one"))
        left = await fleet.remaining(ADA, conversation=run("one", "thread"))
        used = {name: (use.used, use.left) for name, use in left.totals.items()}
        assert used == {"owls.count": (1, 1), "owls.feed": (1, 1), "owls.ask": (0, 3), "owls.never": (0, 0)}
        assert left.tools["owls.daily"].left == 1
        assert (await fleet.remaining(ADA)).totals == {}


async def test_a_runs_calls_are_forgotten(make: Make, redis: Redis) -> None:
    """A run's a day after its last call, a thread's 30 days after it; long names are digests."""
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(COUNT, ADA, conversation=run("one" * 1000))
        (key,) = [key for key in await redis.keys("toolfleet:limit:*") if not str(key).endswith(":unbegun")]
        assert DAY < await redis.ttl(key) <= DAY + 60
        await redis.delete(key)
        await fleet.submit(ASK, ADA, conversation=run(None, "thread"))
        keys = [key for key in await redis.keys("toolfleet:limit:*") if not str(key).endswith(":unbegun")]
        assert 30 * DAY < await redis.ttl(keys[0]) <= 30 * DAY + 60
        assert Keys().rule_of(str(keys[0])) is not None


async def test_midnight_brings_a_run_nothing(make: Make, redis: Redis, worker: HandWorker) -> None:
    """Its calls of yesterday count."""
    async with ToolFleet(settings=make()) as fleet:
        for _ in range(2):
            await fleet.submit(COUNT, ADA, conversation=run("one"))
        (key,) = [key for key in await redis.keys("toolfleet:limit:*") if not str(key).endswith(":unbegun")]
        for call_id in await redis.zrange(key, 0, -1):
            await redis.zincrby(key, -2 * DAY * 1000, str(call_id))
        assert "2 calls of this kind in a run" in at_limit(await fleet.call(COUNT, ADA, conversation=run("one")))[0]


RUN = CallTotal(kind="run", name="c" * 32, most=1)


@pytest.mark.parametrize("has_run", [True, False])
async def test_a_worker_counts_what_an_agent_has_not(make: Make, worker: HandWorker, has_run: bool) -> None:
    """Of an older agent, or a forged message: by the profile that the worker knows. Without a run the call is refused."""
    async with ToolFleet(settings=make()) as fleet:
        ends = list[object]()
        for _ in range(3):
            await fleet.submit(FREE, ADA, conversation=run("one" if has_run else None))
            claim = await worker.take()
            refusal = await refusal_of(worker._ledger, claim, Terms(totals=(RUN,)), {}, make())
            ends.append(refusal and refusal.error_code)
            await worker.finish(claim, refusal)
        assert ends == ([None, "rate_limited", "rate_limited"] if has_run else ["rate_limited"] * 3)


async def test_what_a_profile_says_travels(make: Make, worker: HandWorker) -> None:
    """With the call: its retries, its limits, and where it counts; a call without a profile says nothing of that."""
    async with ToolFleet(settings=make()) as fleet:
        await fleet.submit(COUNT, ADA, conversation=run("one", "thread"))
        await fleet.submit(COUNT, ADA.model_copy(update={"agent": None}), conversation=run("one", "thread"))
        ruled, plain = await worker.queued()
        assert ruled.retry == RetryTerms(max_retries=4)
        assert (ruled.run_id, ruled.thread_id) == ("one", "thread")
        assert ruled.terms is not None
        assert [(total.kind, total.most) for total in ruled.terms.totals] == [("run", 2)]
        unsaid = PublishedCall.model_fields
        assert all(getattr(plain, name) == unsaid[name].default for name in ("retry", "run_id", "thread_id", "terms"))


def test_the_rules_of_nobody_limit_nothing() -> None:
    """And a total without the name that it counts by is in no key: the call was refused before."""
    assert ToolRules().terms is None
    assert limits_of("owls.count", "ada", Terms(totals=(RUN,)), Settings(), Within(thread_id="thread")) == ()
