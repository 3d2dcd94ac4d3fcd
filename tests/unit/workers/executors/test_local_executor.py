"""One call of a local tool: what a function is given, and what its answer, its failure or its silence comes to."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.local_tools.own_functions import OwnFunctions
from support.published_call import published, sealed_apart
from support.waiting import wait_until
from support.workers.known_tools import FewTools
from toolfleet_cli.local.programs import worker_program
from toolfleet_registry.contracts import Effect, ErrorCode, PublishedCall, ToolDefinition
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Health, Lease, Outcome
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import TagResult
from toolfleet_workers.executors.local import LocalExecutor
from toolfleet_workers.runner import RoutedExecutor

SECONDS = 10  # long enough that only a defect can use it up
seen: list[Any] = []


async def answer(value: str) -> Any:
    return VALUES[value]


async def hold(ignores: int = 0) -> None:
    """Waits for ever; so many cancellations make no impression."""
    seen.append("began")
    for _ in range(ignores):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("ignored")
    try:
        await asyncio.Event().wait()
    finally:
        seen.append("ended")


async def fail(kind: str) -> None:
    raise ERRORS[kind]


async def own_clock(context: Context) -> None:
    """Has a clock that is set by what is left of its call's time."""
    async with asyncio.timeout(context.seconds_left):
        await asyncio.Event().wait()


def in_a_thread(context: Context) -> None:
    """The same, as a socket's own timeout is."""
    if not threading.Event().wait(max((context.seconds_left or 0) - 0.001, 0)):
        raise TimeoutError


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep(levels: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(levels):
        deep = [deep]
    return deep


VALUES: dict[str, Any] = {
    "none": None,
    "plain": {"owls": [1, 2.5, "Käuze 🦉"]},
    "tuple": ((1, 2), {3: "three"}),
    "half": "a\ud83e",
    "tag": TagResult(success=True, message="Found.", side_effects=["searched"]),
    "object": object(),
    "set": {1},
    "nan": [math.nan],
    "circle": _circle(),
    "deep": _deep(150),
    "very deep": _deep(20_000),
    "large": ["owl"] * 500_000,
    "bytes": {b"key": 1},
    "strange tag": TagResult(success=True, audit={"loop": object()}),
    "no": TagResult(success=False, message="No such owl.\x1b[31m", audit={"looked": True}),
    "silent no": TagResult(success=False),
}
ERRORS: dict[str, BaseException] = {
    "value": ValueError("secret: hunter2"),
    "time": TimeoutError("secret: hunter2"),
    "exit": SystemExit("secret: hunter2"),
    "interrupt": KeyboardInterrupt("secret: hunter2"),
    "cancelled": asyncio.CancelledError("secret: hunter2"),
    "group": ExceptionGroup("secret: hunter2", [ValueError("secret: hunter2")]),
}


@pytest.fixture
async def executor() -> AsyncIterator[LocalExecutor]:
    executor = LocalExecutor(OwnFunctions(answer, hold, fail, own_clock, in_a_thread), max_result_bytes=2**20)
    seen.clear()
    yield executor
    await executor.aclose()


def call(method: str, effect: Effect | None = None, **arguments: Any) -> PublishedCall:
    return published(f"local.{method}", arguments=arguments, effect=effect)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("none", None),
        ("plain", {"owls": [1, 2.5, "Käuze 🦉"]}),
        ("tuple", [[1, 2], {"3": "three"}]),
        ("half", "a\ufffd"),
        ("tag", {"success": True, "message": "Found.", "side_effects": ["searched"], "audit": {}}),
    ],
)
async def test_what_a_function_returns_is_the_result(executor: LocalExecutor, value: str, result: Any) -> None:
    """As it is after a journey as JSON."""
    attempt = await executor.execute(call("answer", value=value), seconds=SECONDS)
    again = await executor.execute(sealed_apart(call("answer", value=value)), seconds=SECONDS)

    assert attempt.outcome is Outcome.SUCCESS
    assert again == attempt
    assert (attempt.result.result, attempt.result.effect_state) == (result, "done")


@pytest.mark.parametrize(
    ("value", "code", "reason"),
    [
        ("object", "invalid_response", "Object of type object is not JSON serializable"),
        ("set", "invalid_response", "Object of type set"),
        ("nan", "invalid_response", "a number that is not finite"),
        ("circle", "invalid_response", "nested too deeply, or contains itself"),
        ("deep", "invalid_response", "nested deeper than 100 levels"),
        ("very deep", "invalid_response", "nested too deeply"),
        ("bytes", "invalid_response", "keys must be str"),
        ("strange tag", "invalid_response", ""),
        ("large", "result_too_large", "larger than 1048576 bytes"),
    ],
)
async def test_a_result_that_cannot_travel_is_none(
    executor: LocalExecutor, value: str, code: ErrorCode, reason: str
) -> None:
    """The function has done its work all the same, so the call is not repeated."""
    attempt = await executor.execute(call("answer", value=value), seconds=SECONDS)

    assert (attempt.result.error_code, attempt.result.effect_state) == (code, "done")
    assert reason in str(attempt.result.error)
    assert str(attempt.result.error).startswith("Tool execution error: the function's result is")


@pytest.mark.parametrize("kind", ERRORS)
async def test_what_a_function_raises_ends_its_call_and_nothing_else(executor: LocalExecutor, kind: str) -> None:
    """`SystemExit` would end the worker. The error's kind is told, its text and its traceback are not."""
    attempt = await executor.execute(call("fail", kind=kind), seconds=SECONDS)

    expected = f"Tool execution error: the function failed ({type(ERRORS[kind]).__name__}); its log says why."
    assert (attempt.result.error, attempt.result.error_code) == (expected, "module_error")
    assert attempt.result.effect_state == "unknown"
    assert attempt.outcome is Outcome.FAILED  # as a module that says so: the same table decides what follows


@pytest.mark.parametrize(("value", "error"), [("no", "No such owl."), ("silent no", "The tool says that it failed.")])
async def test_a_function_may_say_that_it_failed(executor: LocalExecutor, value: str, error: str) -> None:
    """In its own words, which are for the model; what else it says is there, too."""
    attempt = await executor.execute(call("answer", value=value), seconds=SECONDS)

    assert (attempt.result.success, attempt.result.error, attempt.result.error_code) == (False, error, "module_error")
    assert attempt.result.result["audit"] == VALUES[value].audit


@pytest.mark.parametrize(
    ("wrong", "seconds", "code"),
    [
        (call("nowhere"), SECONDS, "unknown_tool"),
        (call("answer"), SECONDS, "invalid_arguments"),
        (call("answer", value="none", more=1), SECONDS, "invalid_arguments"),
        (call("hold"), 0, "expired"),
        (call("hold"), -1, "expired"),
    ],
)
async def test_a_call_that_cannot_be_begun_has_no_effect(
    executor: LocalExecutor, wrong: PublishedCall, seconds: float, code: ErrorCode
) -> None:
    """The function is not called."""
    attempt = await executor.execute(wrong, seconds=seconds)

    assert (attempt.result.error_code, attempt.result.effect_state) == (code, "none")
    assert seen == []


@pytest.mark.parametrize(("missing", "unreached"), [("all", Health.AWAY), ("some", Health.UNKNOWN)])
async def test_a_worker_that_could_not_import_a_tool_leaves_its_call_to_others(missing: str, unreached: Health) -> None:
    """Nothing was executed; a worker that has none of the tools is no way to their module."""
    executor = LocalExecutor(OwnFunctions(missing=missing), max_result_bytes=1)
    attempt = await executor.execute(call("answer"), seconds=SECONDS)

    assert (attempt.outcome, attempt.unreached) == (Outcome.NOT_SENT, unreached)
    assert (attempt.result.error_code, attempt.result.effect_state) == ("module_unreachable", "none")
    assert await executor.probe("local", seconds=1) is (Health.AWAY if missing == "all" else Health.WELL)


@pytest.mark.parametrize(
    ("in_effect", "is_approved", "runs"), [(True, False, True), (False, True, True), (False, False, False)]
)
async def test_code_that_nobody_has_approved_is_not_run(*, in_effect: bool, is_approved: bool, runs: bool) -> None:
    """Where other code is in effect, as another worker has it; that one is given the call."""
    own = OwnFunctions(answer)

    digest = own.functions["local.answer"].definition.code_digest if in_effect else "sha256:other"
    tools = FewTools(ToolDefinition(name="local.answer", code_digest=digest))
    tools.approves = is_approved
    executor = LocalExecutor(own, max_result_bytes=1000, approvals=tools)
    attempt = await executor.execute(call("answer", value="none"), seconds=SECONDS)
    assert attempt.result.success is runs
    if not runs:
        assert (attempt.outcome, attempt.result.effect_state) == (Outcome.NOT_SENT, "none")
        assert attempt.result.error_code == "permission_denied"


async def test_a_function_is_cancelled_when_its_time_is_over(executor: LocalExecutor) -> None:
    """It may clean up, and the caller is told that nobody knows what it did."""
    with pytest.raises(TimeoutError):
        await executor.execute(call("hold"), seconds=0.5)
    assert seen == ["began", "ended"]


@pytest.mark.parametrize("method", ["own_clock", "in_a_thread"])
async def test_a_function_that_fails_as_its_time_ends_has_had_no_time(executor: LocalExecutor, method: str) -> None:
    """Whichever clock was first: nobody knows what it did."""
    with pytest.raises(TimeoutError):
        await executor.execute(call(method), seconds=0.05)


async def test_a_function_ends_with_its_call(executor: LocalExecutor) -> None:
    """A call that is taken back, or killed, leaves nothing running."""
    running = asyncio.create_task(executor.execute(call("hold"), seconds=SECONDS))
    await wait_until(lambda: seen, "it has begun")
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["began", "ended"]


async def test_a_function_that_does_not_want_to_end_is_left_behind(executor: LocalExecutor) -> None:
    """Its call is not held up; it gets one more chance when the worker ends."""
    with pytest.raises(TimeoutError):
        await executor.execute(call("hold", ignores=1), seconds=0.5)
    assert seen == ["began", "ignored"]

    await executor.aclose()
    assert seen == ["began", "ignored", "ended"]


async def test_other_calls_get_their_turn_while_a_large_result_is_written(executor: LocalExecutor) -> None:
    """The loop turns between two parts of it."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await executor.execute(call("answer", value="large"), seconds=SECONDS)
    counting.cancel()
    assert turns > 10


async def test_nobody_can_say_what_a_lost_function_did(executor: LocalExecutor) -> None:
    """Its worker is gone, and it has left no word."""
    assert await executor.reconcile(call("answer", value="none"), seconds=SECONDS) is None


async def test_a_call_goes_to_its_modules_executor() -> None:
    """And to the common one if it has none of its own."""

    class Named(LocalExecutor):
        def __init__(self, name: str) -> None:
            super().__init__(OwnFunctions(), max_result_bytes=1)
            self.name = name

        async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
            seen.append(f"{self.name} executes {call.tool_name}")
            return await super().execute(call, seconds=seconds)

        async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
            seen.append(f"{self.name} asks")
            return await super().reconcile(call, seconds=seconds)

        async def probe(self, module: str, *, seconds: float) -> Health:
            return Health.WELL

        async def aclose(self) -> None:
            seen.append(f"{self.name} closes")

    seen.clear()
    routed = RoutedExecutor({"local": Named("own")}, others=Named("other"))
    for name in ("local.a", "locally.b", "local"):
        await routed.execute(published(name), seconds=1)
    await routed.reconcile(published("local.a"), seconds=1)
    await routed.aclose()

    executed = ["own executes local.a", "other executes locally.b", "own executes local"]
    assert seen == [*executed, "own asks", "own closes", "other closes"]


def test_a_fleets_workers_run_where_their_functions_are() -> None:
    """Python looks for them in the working directory; without any, a worker has no business there."""
    assert worker_program("fast", Settings(local_tools="a.b:c")).cwd == Path.cwd()
    assert worker_program("fast", Settings()).cwd is None
