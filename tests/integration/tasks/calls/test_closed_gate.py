"""A gate that fails closed, by an agent's profile or by a setting: what it has not approved is not made."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from support.module_server import ModuleServer, serve
from support.owls import echo
from support.workers.hand_worker import HandWorker, hand_worker
from toolfleet import Caller, GateDecision, ToolCall, ToolFleet
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags.tags import ToolContext
from toolfleet_tasks.calls import eval_gate
from toolfleet_tasks.calls.eval_gate import EvalGate

CAREFUL, LENIENT, PLAIN = (
    Caller(user_id="ada", permission="owner", allowed_modules="*", agent=agent)
    for agent in ("careful", "lenient", None)
)
FEED, COUNT, OWN = (ToolCall(tool_name=f"owls.{name}") for name in ("feed", "count", "own"))
AGENTS: dict[str, Any] = {
    "careful": {"middleware": [{"name": "gate", "tools": ["owls.feed", "owls.own"]}]},
    "lenient": {"middleware": [{"name": "gate", "tools": ["owls.feed"], "fails": "open"}]},
}


class Gate:
    """Answers as it is told."""

    def __init__(self, answer: Callable[[], Awaitable[bool]]) -> None:
        self.answer = answer
        self.asked = list[str]()

    async def check(self, tool: Any, ctx: ToolContext) -> GateDecision:
        self.asked.append(tool.name)
        return GateDecision(approved=await self.answer(), reason="Not before lunch.")


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def fail() -> bool:
    raise RuntimeError("the evaluation's model is away")


async def never() -> bool:
    return await asyncio.Future[bool]()


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("feed", echo, effect="read")
    module.add("count", echo, effect="read")
    module.add("own", echo, effect="read", requires_gate=True)
    with serve(module) as served:
        yield served


@pytest.fixture
def settings(redis_url: str, owls: ModuleServer) -> Settings:
    return Settings.model_validate({"redis_url": redis_url, "module_services": {"owls": owls.url}, "agents": AGENTS})


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[HandWorker]:
    async with hand_worker(settings) as worker:
        yield worker


async def made(
    settings: Settings, worker: HandWorker, gate: EvalGate | None, call: ToolCall, caller: Caller
) -> tuple[str | None, str | None]:
    """How the gate is noted of a call that is published; or the code and the words of its refusal."""
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        handle = await fleet.submit(call, caller)
        if not await worker.queued():
            result = await handle.result(5)
            return result.error_code, result.error
        claim = await worker.take()
        await worker.finish(claim)
        return claim.call.decisions.get("gate"), None


@pytest.mark.parametrize("answer", [None, fail, never, no])
async def test_a_profiles_closed_gate_blocks_what_it_has_not_approved(
    settings: Settings,
    worker: HandWorker,
    answer: Callable[[], Awaitable[bool]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it is not there, fails, is late, or says no; also of a tool that itself leaves that open."""
    monkeypatch.setattr(eval_gate, "_GATE_SECONDS", 0.1)
    for call in (FEED, OWN):
        code, _ = await made(settings, worker, answer and Gate(answer), call, CAREFUL)
        assert code == "blocked_by_gate"


async def test_a_profiles_gate_is_asked(settings: Settings, worker: HandWorker) -> None:
    """Of the tools that it selects, whose own definitions ask for none, and of no others."""
    gate = Gate(yes)
    assert await made(settings, worker, gate, FEED, CAREFUL) == ("allowed", None)
    assert await made(settings, worker, gate, COUNT, CAREFUL) == (None, None)
    assert await made(settings, worker, gate, FEED, PLAIN) == (None, None)
    assert gate.asked == ["owls.feed"]


async def test_an_open_gate_lets_pass_what_it_cannot_judge(settings: Settings, worker: HandWorker) -> None:
    """As gates of tools do; the call's audit says so."""
    assert await made(settings, worker, None, FEED, LENIENT) == ("none", None)
    assert await made(settings, worker, Gate(fail), FEED, LENIENT) == ("failed_open", None)


async def test_all_gates_may_fail_closed(settings: Settings, worker: HandWorker) -> None:
    """By the setting, of every tool that requires one; other tools are called as ever."""
    closed = settings.model_copy(update={"gate_fails_closed": True})
    for gate, words in ((None, "there is none"), (Gate(fail), "it raised RuntimeError")):
        code, text = await made(closed, worker, gate, OWN, PLAIN)
        assert code == "blocked_by_gate"
        assert words in (text or "")
    assert await made(closed, worker, None, COUNT, PLAIN) == (None, None)
    assert await made(settings, worker, None, OWN, PLAIN) == ("none", None)
