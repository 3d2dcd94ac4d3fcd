"""The runner: middleware around an executor, what passes it, and what it turns into a result."""

import asyncio
import gc
import weakref
from asyncio import create_task
from collections.abc import Callable
from contextvars import Context, copy_context

import pytest
import structlog
from structlog.testing import capture_logs

from support.clocks import pass_virtually, run_virtually
from support.published_call import published
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Health, Lease, Outcome, UnboundedLease
from toolfleet_workers.runner import CallRunner, Proceed

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok("research.search_docs", 1))


class StubExecutor:
    """Ends each call as `end` does, and notes what it was given."""

    def __init__(self, end: Callable[[], Attempt] = lambda: SUCCESS) -> None:
        self.end = end
        self.seconds: list[float] = []
        self.bound: dict[str, object] = {}
        self.is_closed = False

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt:
        self.seconds.append(seconds)
        self.bound = structlog.contextvars.get_contextvars()
        return self.end()

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt | None:
        self.seconds.append(seconds)
        return self.end()

    async def probe(self, module: str, *, seconds: float) -> Health:
        return Health.WELL

    async def aclose(self) -> None:
        self.is_closed = True


def raising(error: BaseException) -> StubExecutor:
    def end() -> Attempt:
        raise error

    return StubExecutor(end)


class Note:
    """A middleware that writes down when it is passed, in and out."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        self.notes.append(f"{self.name} in")
        attempt = await proceed(call)
        self.notes.append(f"{self.name} out")
        return attempt


async def test_a_call_without_middleware_goes_to_the_executor() -> None:
    """The attempt is the executor's, untouched."""
    executor = StubExecutor()

    assert await CallRunner(executor, []).run(published(), seconds=3) is SUCCESS
    assert executor.seconds == [pytest.approx(3, abs=0.5)]


async def test_the_first_middleware_is_the_outermost() -> None:
    """Middleware is passed in order on the way in, and in reverse on the way out."""
    notes: list[str] = []
    await CallRunner(StubExecutor(), [Note("a", notes), Note("b", notes)]).run(published(), seconds=3)

    assert notes == ["a in", "b in", "b out", "a out"]


async def test_a_middleware_may_answer_itself() -> None:
    """What comes after a middleware that does not proceed is not reached."""
    refusal = Attempt(Outcome.PERMANENT, ToolResult.refused("research.search_docs", "rate_limited", "enough"))

    async def refuse(call: PublishedCall, proceed: Proceed) -> Attempt:
        return refusal

    executor = StubExecutor()

    assert await CallRunner(executor, [refuse]).run(published(), seconds=3) is refusal
    assert executor.seconds == []


async def test_a_middleware_may_change_the_call() -> None:
    """The executor gets the call that the middleware passed on."""
    seen: list[PublishedCall] = []

    async def sign(call: PublishedCall, proceed: Proceed) -> Attempt:
        return await proceed(call.model_copy(update={"user_id": "signed"}))

    async def look(call: PublishedCall, proceed: Proceed) -> Attempt:
        seen.append(call)
        return await proceed(call)

    await CallRunner(StubExecutor(), [sign, look]).run(published(), seconds=3)

    assert seen[0].user_id == "signed"


def test_time_that_middleware_takes_is_the_calls_time() -> None:
    """The executor gets what is left of the seconds."""

    async def dawdle(call: PublishedCall, proceed: Proceed) -> Attempt:
        await pass_virtually(2)
        return await proceed(call)

    executor = StubExecutor()
    run_virtually(CallRunner(executor, [dawdle]).run(published(), seconds=30))

    assert executor.seconds == [28]


class _Lease(UnboundedLease):
    """A lease that is known to be gone."""


async def test_what_outlives_an_attempt_does_not_keep_its_lease() -> None:
    """A connection that is opened by a call has the call's context for as long as it lives."""
    contexts: list[Context] = []

    def end() -> Attempt:
        contexts.append(copy_context())
        return SUCCESS

    lease = _Lease("")
    gone = weakref.ref(lease)
    await create_task(CallRunner(StubExecutor(end), []).run(published(), seconds=3, lease=lease))
    del lease
    gc.collect()

    assert contexts
    assert gone() is None


class SoftLimit(Exception, asyncio.CancelledError):  # as the pool's: both kinds at once
    pass


@pytest.mark.parametrize("error", [TimeoutError(), asyncio.CancelledError(), SoftLimit(), KeyboardInterrupt()])
async def test_the_end_of_the_time_and_cancellation_pass(error: BaseException) -> None:
    """Whoever runs the runner knows the limit and the reason; the runner makes no result of them."""
    with pytest.raises(type(error)) as raised:
        await CallRunner(raising(error), []).run(published(), seconds=3)

    assert raised.value is error


async def test_a_defect_becomes_an_internal_error_and_is_logged() -> None:
    """One result for every call, also where our own code fails; the text shows the kind of error and no more."""
    with capture_logs() as logs:
        attempt = await CallRunner(raising(KeyError("secret")), []).run(published(call_id="c9"), seconds=3)

    assert attempt.outcome is Outcome.UNKNOWN
    assert attempt.result.error_code == "internal"
    assert attempt.result.effect_state == "unknown"
    assert attempt.result.error == "Tool execution error: internal error (KeyError)"
    crash = next(entry for entry in logs if entry["event"] == "tool_call_crashed")
    assert "execute" in crash["stack"]
    assert (crash["call_id"], crash["tool"], crash["kind"]) == ("c9", "research.search_docs", "KeyError")
    assert "secret" not in str({**crash, "stack": ""})


async def test_a_module_is_asked_past_the_middleware() -> None:
    """Nothing is executed, so that nothing has to be allowed, counted or logged as a call."""
    notes: list[str] = []
    executor = StubExecutor()

    assert await CallRunner(executor, [Note("a", notes)]).reconcile(published(), seconds=2) is SUCCESS
    assert executor.seconds == [2]
    assert notes == []


async def test_a_question_that_fails_leaves_the_end_unknown() -> None:
    """Whatever goes wrong in asking, the call still ends; the log says what it was."""
    with capture_logs() as logs:
        assert await CallRunner(raising(KeyError("x")), []).reconcile(published(call_id="c9"), seconds=3) is None

    assert logs[0]["event"] == "reconcile_failed"
    assert (logs[0]["call_id"], logs[0]["tool"]) == ("c9", "research.search_docs")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SoftLimit()])
async def test_a_question_can_be_cancelled(error: BaseException) -> None:
    """A cancellation, and the pool's soft limit, pass unchanged."""
    with pytest.raises(type(error)):
        await CallRunner(raising(error), []).reconcile(published(), seconds=3)


async def test_closing_the_runner_closes_the_executor() -> None:
    """The worker closes one thing."""
    executor = StubExecutor()
    await CallRunner(executor, []).aclose()

    assert executor.is_closed


async def test_a_calls_start_is_logged_for_those_who_debug(caplog: pytest.LogCaptureFixture) -> None:
    """One line, without the call's arguments and result; its end is told by its audit line."""
    caplog.set_level("DEBUG")
    with capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        await CallRunner(StubExecutor(), []).run(published(call_id="c7"), seconds=3)

    (line,) = logs
    assert (line["event"], line["log_level"]) == ("tool_call_started", "debug")
    assert (line["call_id"], line["tool"]) == ("c7", "research.search_docs")
    assert "owls" not in str(logs)


async def test_lines_logged_during_a_call_name_it_and_later_ones_do_not() -> None:
    """`call_id` and `tool` are bound while the call runs, and no longer."""
    executor = StubExecutor()
    await CallRunner(executor, []).run(published(call_id="c7"), seconds=3)

    assert executor.bound == {"call_id": "c7", "tool": "research.search_docs"}
    assert structlog.contextvars.get_contextvars() == {}
