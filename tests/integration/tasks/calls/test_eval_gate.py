"""An agent's gate: whom it is asked about, what it may say, and what follows when it says nothing: by default calls pass."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.clocks import Later
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.hand_worker import HandWorker
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.contracts import Terms, ToolDefinition
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import ToolContext, ToolDef
from toolfleet_tasks.calls.eval_gate import Circumstances, EvalGate, GateDecision

pytestmark = pytest.mark.usefixtures("same_day")

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
CAREFUL, LENIENT = (ADA.model_copy(update={"agent": agent}) for agent in ("careful", "lenient"))
FEED, COUNT, OWN = (ToolCall(tool_name=f"owls.{name}") for name in ("feed", "count", "own"))
AGENTS: dict[str, Any] = {
    "careful": {"middleware": [{"name": "gate", "tools": ["owls.feed", "owls.own"]}]},
    "lenient": {"middleware": [{"name": "gate", "tools": ["owls.feed"], "fails": "open"}]},
}
GATED, ONCE, OPEN = (ToolCall(tool_name=f"owls.{name}", arguments={"n": 1}) for name in ("gated", "once", "open"))
YES, NO = GateDecision(approved=True), GateDecision(approved=False, reason="Not before lunch.")


@dataclass
class Gate:
    """Answers with `answer`, or does what it says; `asked` has what it was asked."""

    answer: Callable[[], Any]
    asked: list[tuple[Any, ToolContext]] = field(default_factory=list)

    async def check(self, tool: ToolDef | ToolDefinition, ctx: ToolContext) -> GateDecision:
        self.asked.append((tool, ctx))
        answer = self.answer()
        decision: GateDecision = await answer if asyncio.iscoroutine(answer) else answer
        return decision


@dataclass(frozen=True)
class OtherDecision:
    """Somebody's own class."""

    approved: bool
    reason: str | None = None


@pytest.fixture(scope="module")
def gated() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("gated", echo, requires_gate=True, daily_limit=1)
    module.add("once", echo, requires_gate=True, effect="once")
    module.add("open", echo)
    module.add("feed", echo, effect="read")
    module.add("count", echo, effect="read")
    module.add("own", echo, effect="read", requires_gate=True)
    with serve(module) as served:
        yield served


@pytest.fixture
def settings(redis_url: str, gated: ModuleServer) -> Settings:
    return Settings.model_validate({"redis_url": redis_url, "module_services": {"owls": gated.url}, "agents": AGENTS})


async def submitted(fleet: ToolFleet, call: ToolCall, **options: Any) -> ToolResult | None:
    """The result of a call that was not published, `None` for one that was."""
    handle = await fleet.submit(call, ADA, **options)
    return await handle.result(PATIENCE_SECONDS) if await handle.status() == "done" else None


def is_blocked(result: ToolResult | None) -> str:
    """Why, once all else that is said of a blocked call was found right."""
    assert result is not None
    assert (result.error_code, result.effect_state, result.retryable) == ("blocked_by_gate", "none", False)
    assert "not allowed" in (result.hint or "")
    return result.error or ""


async def test_the_gate_is_asked_before_a_tool_that_requires_it(settings: Settings, worker: HandWorker) -> None:
    """With the tool, and what the agent knows; about no other tool."""
    gate, context = Gate(lambda: YES), ToolContext(raw_arg="owls", user_message="Owls?", user="@ada", chat_id=7)
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        for call in (GATED, OPEN):
            assert await submitted(fleet, call, context=context) is None
    ((tool, asked),) = gate.asked
    assert (tool.name, tool.daily_limit, asked) == ("owls.gated", 1, context)
    assert len(await worker.queued()) == 2


async def test_without_a_context_it_gets_the_arguments(settings: Settings) -> None:
    """As JSON, and the user's id."""
    gate = Gate(lambda: YES)
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        await submitted(fleet, GATED)
    ((_, context),) = gate.asked
    assert (json.loads(context.raw_arg), context.user) == ({"n": 1}, "ada")


async def test_a_blocked_call_is_not_published(settings: Settings, worker: HandWorker) -> None:
    """Its result has the gate's reason, and it counts in no limit."""
    async with ToolFleet(settings=settings, gate=Gate(lambda: NO)) as fleet:
        for _ in range(2):
            assert is_blocked(await submitted(fleet, GATED)) == "Not before lunch."
        assert await worker.queued() == []
        assert (await fleet.remaining(ADA)).tools["owls.gated"].used == 0


async def test_without_a_gate_everything_runs(settings: Settings, worker: HandWorker) -> None:
    """Unconditionally; for the audit it is noted where one should have been asked."""
    async with ToolFleet(settings=settings) as fleet:
        for call in (GATED, ONCE, OPEN):
            assert await submitted(fleet, call) is None
    assert [call.decisions for call in await worker.queued()] == [{"gate": "none"}, {"gate": "none"}, {}]


GATE_SECONDS = 0.01
"""For a gate that fails: none of them answers in time."""


def raises(error: BaseException) -> Callable[[], Any]:
    async def fail() -> GateDecision:
        raise error

    return fail


def is_late() -> Any:
    return asyncio.Event().wait()


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": raises(ValueError("broken")),
    "is cancelled": raises(asyncio.CancelledError()),
    "is late": is_late,
}


def holding_the_loop(later: Later) -> dict[str, Callable[[], Any]]:
    """Faults of gates that are no coroutines: meanwhile nothing else runs, and the clocks go on."""

    def blocks_the_thread() -> Any:
        later.seconds += 2 * GATE_SECONDS
        raise ValueError("slow and wrong")

    def approves_late() -> Any:
        later.seconds += 2 * GATE_SECONDS
        return YES

    return {"blocks the thread": blocks_the_thread, "approves late": approves_late}


NO_DECISIONS: list[Any] = [
    None,
    False,
    True,
    "yes",
    GateDecision(approved=None),  # type: ignore[arg-type] # nonsense
    GateDecision(approved="no"),  # type: ignore[arg-type] # nonsense
    GateDecision(approved=1),  # type: ignore[arg-type] # nonsense
    GateDecision(approved=0, reason=5),  # type: ignore[arg-type] # nonsense
]


@pytest.mark.parametrize("fault", [*FAULTS, *holding_the_loop(Later())])
async def test_a_gate_that_fails_lets_calls_pass(
    settings: Settings, worker: HandWorker, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a warning; but for those whose effect must not happen twice."""
    monkeypatch.setattr("toolfleet_tasks.calls.eval_gate._GATE_SECONDS", GATE_SECONDS)
    monkeypatch.setattr("toolfleet_tasks.calls.eval_gate._GRACE_SECONDS", 0.0)
    faults = FAULTS | holding_the_loop(Later.here(monkeypatch))
    async with ToolFleet(settings=settings, gate=Gate(faults[fault])) as fleet:
        with capture_logs() as logs:
            assert await submitted(fleet, GATED) is None
            assert "must not happen twice" in is_blocked(await submitted(fleet, ONCE))
        warnings = [entry for entry in logs if entry["event"] == "gate_failed"]
        assert [entry["is_blocked"] for entry in warnings] == [False, True]
        assert len(await worker.queued()) == 1


@pytest.mark.parametrize("answer", NO_DECISIONS, ids=repr)
async def test_only_a_clear_yes_lets_a_call_pass(settings: Settings, answer: Any) -> None:
    """Whatever else a gate answers blocks; a warning says what it was, for somebody has to mend that gate."""
    async with ToolFleet(settings=settings, gate=Gate(lambda: answer)) as fleet:
        with capture_logs() as logs:
            result = await submitted(fleet, GATED)
    assert is_blocked(result) == "Tool call blocked: the gate's answer is no decision."
    (warning,) = [entry for entry in logs if entry["event"] == "gate_answer_is_no_decision"]
    assert warning["answer"] == type(answer).__name__


async def test_a_yes_needs_no_reason_that_can_be_read(settings: Settings) -> None:
    """Nobody reads it."""
    odd = GateDecision(approved=True, reason=5)  # type: ignore[arg-type] # nonsense
    async with ToolFleet(settings=settings, gate=Gate(lambda: odd)) as fleet:
        assert await submitted(fleet, GATED) is None


async def test_a_gate_without_a_coroutine_decides_as_well(settings: Settings) -> None:
    """A no is a no."""

    class Plain:
        def check(self, tool: Any, ctx: Any) -> GateDecision:
            return NO

    async with ToolFleet(settings=settings, gate=Plain()) as fleet:  # type: ignore[arg-type] # that is the point
        assert is_blocked(await submitted(fleet, GATED)) == "Not before lunch."


async def test_decisions_of_any_class_count(settings: Settings) -> None:
    """Agents have their own."""
    async with ToolFleet(settings=settings, gate=Gate(lambda: OtherDecision(False))) as fleet:
        assert is_blocked(await submitted(fleet, GATED)) == "Tool call blocked by the gate."


async def test_the_gate_counts_into_the_callers_time(settings: Settings, worker: HandWorker) -> None:
    """Which is over when it is over."""
    async with ToolFleet(settings=settings, gate=Gate(is_late)) as fleet:
        result = await fleet.call(GATED, ADA, timeout=0.1)

        assert (result.error_code, result.effect_state) == ("expired", "none")
        assert await worker.queued() == []


async def test_a_caller_who_gives_up_takes_the_question_back(settings: Settings, worker: HandWorker) -> None:
    """Nothing is published, and the gate hears of it."""
    heard = list[str]()

    async def wait() -> GateDecision:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise
        return YES

    gate = Gate(wait)
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        calling = asyncio.create_task(fleet.call(GATED, ADA))
        await wait_until(lambda: gate.asked, "the gate is asked")
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()
        await wait_until(lambda: heard, "the gate is told")
        assert await worker.queued() == []


async def test_a_tag_brings_terms_and_a_tool_of_its_own(settings: Settings) -> None:
    """The gate is asked about the tag's tool, and the stricter limit holds."""
    tag = ToolDef(name="o", description="", tag_prefix="O", handler="owls.open", cost="free", requires_gate=True)
    around = Circumstances(ToolContext(raw_arg="x"), Terms(daily_limit=1, requires_gate=True), tag)
    gate = Gate(lambda: YES)
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        begun = [await fleet._sessions.begin(OPEN, ADA, None, None, waits=False, around=around) for _ in range(2)]
        assert [result.error_code for result in begun if isinstance(result, ToolResult)] == ["rate_limited"]
    assert [tool for tool, _ in gate.asked] == [tag]  # the limit is looked at first


async def made(
    settings: Settings, worker: HandWorker, gate: EvalGate | None, call: ToolCall, caller: Caller
) -> tuple[str | None, str | None]:
    """How the gate is noted of a call that is published; or the code and the words of its refusal."""
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        handle = await fleet.submit(call, caller)
        if not await worker.queued():
            result = await handle.result(PATIENCE_SECONDS)
            return result.error_code, result.error
        claim = await worker.take()
        await worker.finish(claim)
        return claim.call.decisions.get("gate"), None


@pytest.mark.parametrize(
    "answer", [None, raises(RuntimeError("away")), is_late, lambda: NO], ids=["none", "fails", "is late", "says no"]
)
async def test_a_profiles_closed_gate_blocks_what_it_has_not_approved(
    settings: Settings,
    worker: HandWorker,
    answer: Callable[[], Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it is not there, fails, is late, or says no; also of a tool that itself leaves that open."""
    monkeypatch.setattr("toolfleet_tasks.calls.eval_gate._GATE_SECONDS", 0.1)
    for call in (FEED, OWN):
        code, _ = await made(settings, worker, answer and Gate(answer), call, CAREFUL)
        assert code == "blocked_by_gate"


async def test_a_profiles_gate_is_asked(settings: Settings, worker: HandWorker) -> None:
    """Of the tools that it selects, whose own definitions ask for none, and of no others."""
    gate = Gate(lambda: YES)
    assert await made(settings, worker, gate, FEED, CAREFUL) == ("allowed", None)
    assert await made(settings, worker, gate, COUNT, CAREFUL) == (None, None)
    assert await made(settings, worker, gate, FEED, ADA) == (None, None)
    assert [tool.name for tool, _ in gate.asked] == ["owls.feed"]


async def test_an_open_gate_lets_pass_what_it_cannot_judge(settings: Settings, worker: HandWorker) -> None:
    """As gates of tools do; the call's audit says so."""
    assert await made(settings, worker, None, FEED, LENIENT) == ("none", None)
    assert await made(settings, worker, Gate(raises(RuntimeError("away"))), FEED, LENIENT) == ("failed_open", None)


async def test_all_gates_may_fail_closed(settings: Settings, worker: HandWorker) -> None:
    """By the setting, of every tool that requires one; other tools are called as ever."""
    closed = settings.model_copy(update={"gate_fails_closed": True})
    for gate, words in ((None, "there is none"), (Gate(raises(RuntimeError("away"))), "it raised RuntimeError")):
        code, text = await made(closed, worker, gate, OWN, ADA)
        assert code == "blocked_by_gate"
        assert words in (text or "")
    assert await made(closed, worker, None, COUNT, ADA) == (None, None)
    assert await made(settings, worker, None, OWN, ADA) == ("none", None)
