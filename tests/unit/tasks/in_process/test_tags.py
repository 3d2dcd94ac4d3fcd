"""Tags without a fleet: their functions run in this process, by the rules of a fleet."""

import asyncio
import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from support.clocks import run_virtually
from support.local_tools.tag_tools import echo_tag, explode_tag, learning, learning_tag, refuse_tag, tag
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from toolfleet import Caller, GateDecision
from toolfleet.tags import TagRegistry, TagResult, ToolContext, ToolDef, ToolNotFound, ToolRateLimited, local_tool
from toolfleet_registry.errors import SettingsError
from toolfleet_tasks.client.tags import MemoryLimits
from toolfleet_tasks.limits import Limit

CONTEXT = ToolContext("owls", "Owls?", "@ada", 7, "Barns.", 0.5)
DAY = 86_400_000
NOON = 20_000 * DAY + DAY // 2


class Gate:
    """Answers with `answer`; `asked` has what it was asked."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or GateDecision(approved=True)
        self.asked: list[tuple[Any, ToolContext]] = []

    async def check(self, tool: Any, ctx: ToolContext) -> GateDecision:
        self.asked.append((tool, ctx))
        if isinstance(self.answer, BaseException):
            raise self.answer
        decision: GateDecision = self.answer
        return decision


class Counter:
    """A handler that counts how often it was called."""

    def __init__(self) -> None:
        self.calls: list[ToolContext] = []

    def tag(self, name: str = "count", **fields: Any) -> ToolDef:
        async def handler(ctx: ToolContext) -> TagResult:
            self.calls.append(ctx)
            return TagResult(True, f"{len(self.calls)}", ["counted"], {"posts": 3, "tool": "mine"})

        return tag(name, handler=handler, **fields)


def registry_of(*listed: ToolDef, **options: Any) -> TagRegistry:
    registry = TagRegistry(**options)
    for tool in listed:
        registry.register(tool)
    return registry


async def test_a_function_runs_here_and_is_told_everything() -> None:
    """Any async one, also a nested one. Its result has the stamps of the clock here."""
    counter = Counter()
    result = await registry_of(counter.tag()).execute("count", CONTEXT)

    assert counter.calls == [CONTEXT.model_copy(update={"groups": {"raw_arg": "owls"}})]
    assert (result.success, result.message, result.side_effects) == (True, "1", ["counted"])
    assert result.audit.keys() == {"posts", "duration_ms", "tool", "ts"}
    assert (result.audit["posts"], result.audit["tool"]) == (3, "count")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(result.audit["ts"])).total_seconds()) < 60


@pytest.mark.parametrize(
    ("lines", "refusal"),
    [
        ({}, None),
        ({"effects": {"count": "read"}}, None),
        ({"permission": "admin"}, "needs 'admin'"),
        ({"approval": True}, "a person has to approve it"),
        ({"approval": ["count"]}, "a person has to approve it"),
        ({"approval": ["other"]}, None),
    ],
)
async def test_what_settings_say_of_local_tools_holds_here_too(
    lines: dict[str, Any], refusal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be asked for an approval without a fleet, so a function that needs one is not run."""
    counter = Counter()
    monkeypatch.setenv("TOOLFLEET_MODULE", json.dumps({"local": lines}))
    result = await registry_of(counter.tag()).execute("count", CONTEXT)
    assert (result.success, len(counter.calls)) == (refusal is None, int(refusal is None))
    assert (refusal or "1") in str(result.message)


async def test_calls_that_wait_for_each_other_need_a_fleet() -> None:
    """Other processes may make them, too: without a fleet the function is not run."""
    came = list[ToolContext]()

    @local_tool(concurrency_key="raw_arg")
    async def paint(ctx: ToolContext) -> None:
        came.append(ctx)

    with pytest.raises(
        SettingsError, match=r"'local.paint' wait for each other: make its TagRegistry with a ToolFleet"
    ):
        await registry_of(tag("paint", handler=paint)).execute("paint", CONTEXT)
    assert came == []


async def test_an_import_path_is_a_function_as_well() -> None:
    """With the tag's groups; a module's tool is for a fleet, and what is not there is said."""
    lost = tag("lost", handler="support.local_tools.tag_tools:nowhere")
    registry = registry_of(learning_tag, echo_tag, lost)

    assert (await registry.execute("learning", ToolContext("factual owls see"))).message == "factual: owls see"
    with pytest.raises(SettingsError, match="with a ToolFleet"):
        await registry.execute("echo", CONTEXT)
    with pytest.raises(SettingsError, match="has no 'nowhere'"):
        await registry.execute("lost", CONTEXT)
    with pytest.raises(ToolNotFound):
        await registry.execute("nowhere", CONTEXT)


async def test_limits_hold_for_each_user() -> None:
    """A call over one raises as in a fleet, and is not executed."""
    counter = Counter()
    registry = registry_of(counter.tag(daily_limit=2), counter.tag("slow", tag_prefix="S", cooldown_seconds=60))
    for _ in range(2):
        await registry.execute("count", CONTEXT)
    with pytest.raises(ToolRateLimited, match=r"daily limit of 2 calls is reached.*T00:00:00Z"):
        await registry.execute("count", CONTEXT)
    assert (await registry.execute("count", ToolContext("owls", user="@bob"))).success

    await registry.execute("slow", CONTEXT)
    with pytest.raises(ToolRateLimited, match="once in 60 s"):
        await registry.execute("slow", CONTEXT)
    assert len(counter.calls) == 4


async def test_the_gate_is_asked_after_the_limits_and_what_it_blocks_counts_nowhere() -> None:
    """About tags that require it, with the tag and its context."""
    counter, gate = Counter(), Gate(GateDecision(approved=False, reason="Not now."))
    gated = counter.tag(requires_gate=True, daily_limit=1)
    registry = registry_of(gated, counter.tag("open", tag_prefix="O"), gate=gate)

    for _ in range(2):
        blocked = await registry.execute("count", CONTEXT)
        assert (blocked.success, blocked.message) == (False, "Not now.")
    assert (await registry.execute("open", CONTEXT)).success
    assert [tool for tool, _ in gate.asked] == [gated, gated]

    gate.answer = GateDecision(approved=True)
    assert (await registry.execute("count", CONTEXT)).success
    with pytest.raises(ToolRateLimited):
        await registry.execute("count", CONTEXT)
    assert len(gate.asked) == 3


async def test_a_gate_that_raises_lets_a_call_run() -> None:
    """As in a fleet, with a warning."""
    counter = Counter()
    registry = registry_of(counter.tag(requires_gate=True), gate=Gate(ValueError("broken")))
    assert (await registry.execute("count", CONTEXT)).success
    assert (await registry_of(counter.tag(requires_gate=True)).execute("count", CONTEXT)).success  # there is none


async def test_of_two_that_pass_the_gate_at_once_one_has_the_last_place() -> None:
    """Who was let in by a slow gate is counted when it begins."""
    counter, gate = Counter(), Gate()
    registry = registry_of(counter.tag(requires_gate=True, daily_limit=1), gate=gate)
    found = await asyncio.gather(*(registry.execute("count", CONTEXT) for _ in range(2)), return_exceptions=True)

    assert len(gate.asked) == 2
    assert sorted(type(one).__name__ for one in found) == ["TagResult", "ToolRateLimited"]
    assert len(counter.calls) == 1


async def test_a_function_that_fails_is_a_result() -> None:
    """In its own words if it has any, else without them: they may be secret."""
    registry = registry_of(refuse_tag, explode_tag, tag("odd", handler=_odd))

    refused, exploded = [await registry.execute(name, CONTEXT) for name in ("refuse", "explode")]
    assert (refused.success, refused.message, refused.audit["looked"]) == (False, "No such owl.", True)
    assert (exploded.success, exploded.message) == (
        False,
        "Tool execution error: the function failed (ValueError); its log says why.",
    )
    odd = await registry.execute("odd", CONTEXT)
    assert (odd.success, odd.message) == (
        False,
        "Tool execution error: the function's result is invalid: Object of type object is not JSON serializable",
    )


async def _odd(ctx: ToolContext) -> object:
    return object()


@local_tool(timeout_seconds=10)
async def _stuck(ctx: ToolContext) -> None:
    await asyncio.Event().wait()


@local_tool(timeout_seconds=60)
async def _patient(ctx: ToolContext) -> None:
    await asyncio.Event().wait()


@local_tool(permission="admin")
async def _admins(ctx: ToolContext) -> str:
    return "fine"


@pytest.mark.parametrize(
    ("name", "timeout", "message", "seconds"),
    [
        ("stuck", None, "Tool execution timed out (10s).", 10),
        ("stuck", 40, "Tool execution timed out (10s).", 10),
        ("patient", 40, "Tool execution timed out (40s).", 40),
        ("stuck", 0, "expired", 0),
    ],
)
def test_a_function_ends_in_time(name: str, timeout: float | None, message: str, seconds: float) -> None:
    """Its own, or the caller's, if that is less."""
    registry = registry_of(tag("stuck", handler=_stuck), tag("patient", handler=_patient))
    result, passed = run_virtually(registry.execute(name, CONTEXT, timeout=timeout))

    assert message in str(result.message)
    assert passed == pytest.approx(seconds, abs=0.1)


async def test_a_permission_holds_here_too() -> None:
    """Tags call as guests, unless the registry says for whom."""
    admins = tag("admins", handler=_admins)
    assert "needs 'admin'" in ((await registry_of(admins).execute("admins", CONTEXT)).message or "")

    registry = registry_of(admins, caller=lambda _: Caller(permission="admin", allowed_modules="*"))
    assert (await registry.execute("admins", CONTEXT)).message == "fine"


async def test_arguments_that_do_not_fit_count_nowhere() -> None:
    """A tag that was found always fits; one that was made by hand may not."""
    names = ["category", "content"]
    limited = tag("learn", handler=learning, arg_pattern=r"(\w+)\s+(.+)", arg_groups=names, daily_limit=1)
    registry = registry_of(limited)

    assert "'category' is missing" in ((await registry.execute("learn", ToolContext("owls"))).message or "")
    assert (await registry.execute("learn", ToolContext("factual owls"))).success


def test_a_day_ends_at_midnight_and_what_is_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """UTC; a cooldown may last longer."""
    monkeypatch.setattr("toolfleet_tasks.client.tags._MANY_COUNTS", 1)
    limits = MemoryLimits()
    daily, slow = [Limit("a.b", "daily", 1, 0)], [Limit("a.b", "slow", 0, 2 * DAY)]

    assert limits.judge(daily, NOON) is None
    limits.take(daily, NOON)
    limits.take(slow, NOON)
    assert limits.judge(daily, NOON) == (1, 1, DAY // 2, NOON)
    assert limits.judge(daily, NOON + DAY // 2) is None
    assert limits.judge(slow, NOON + DAY) == (1, 0, DAY, NOON + DAY)
    assert limits.judge([*daily, *slow], NOON) == (2, 0, 2 * DAY, NOON)

    for number in range(5):
        limits.take([Limit("a.b", f"other {number}", 1, 0)], NOON + DAY)
    assert "daily" not in limits._used
    assert "slow" in limits._used


def test_a_function_that_hangs_does_not_keep_a_program_from_ending() -> None:
    """`asyncio.run` waits for all that was begun; a thread that nobody can stop is none of that."""
    released, left = threading.Event(), threading.Event()

    def hang(context: ToolContext) -> str:
        left.set()
        released.wait(3 * PATIENCE_SECONDS)
        left.clear()
        return "late"

    async def execute() -> TagResult:
        return await registry_of(tag("hang", handler=hang)).execute("hang", CONTEXT, timeout=0.5)

    assert "timed out" in str(asyncio.run(execute()).message)
    assert left.is_set()
    released.set()


async def test_a_plain_function_runs_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its time, and a bounded number at once: who finds no thread in time has done nothing."""
    released, began = threading.Event(), threading.Event()

    def hold(context: ToolContext) -> str:
        began.set()
        wait_until_sync(
            lambda: released.is_set() or (context.raw_arg == "ends" and context.cancelled),
            "the test or its time ends it",
        )
        return threading.current_thread().name

    monkeypatch.setenv("TOOLFLEET_LOCAL_THREADS", "1")
    registry = registry_of(tag("hold", handler=hold))
    ended = await registry.execute("hold", ToolContext("ends"), timeout=1.5)
    assert str(ended.message).startswith("Tool execution timed out (1.")
    assert began.is_set()

    began.clear()
    running = asyncio.create_task(registry.execute("hold", CONTEXT))
    await wait_until(began.is_set, "it holds the only thread")
    late = await registry.execute("hold", CONTEXT, timeout=0.1)
    assert (late.success, "no thread was free" in str(late.message)) == (False, True)
    released.set()
    assert (await running).message == "tool hold"


def test_plain_functions_run_in_each_loop_of_a_program() -> None:
    """Also where one has ended before a function of its own."""
    released = threading.Event()

    def hold(context: ToolContext) -> str:
        if context.raw_arg == "wait":
            released.wait(PATIENCE_SECONDS)
        return "here"

    registry = registry_of(tag("hold", handler=hold))
    late = asyncio.run(registry.execute("hold", ToolContext("wait"), timeout=0.5))
    assert not late.success
    assert asyncio.run(registry.execute("hold", CONTEXT)).message == "here"
    released.set()
