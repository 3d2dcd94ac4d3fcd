"""Plain functions as local tools: in threads, a bounded number at once, and within their calls' limits."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from structlog.testing import capture_logs

from support.clocks import Later
from support.documents import programs
from support.local_tools.own_functions import OwnFunctions
from support.published_call import published
from support.there import there
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from toolfleet import report_progress
from toolfleet.sdk import Context
from toolfleet.tags import ToolContext
from toolfleet_registry.contracts import Effect, PublishedCall
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.call_context import Progress, report_to
from toolfleet_registry.functions import threads
from toolfleet_registry.local.local_function import ANSWER_SECONDS, LocalFunction
from toolfleet_registry.local.local_tools import LocalSource, load_local_tools
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.retry import Next, decide
from toolfleet_workers.executors.local import LocalExecutor

SECONDS = 10  # long enough that only a defect can use it up
THREADS = 2
seen: list[Any] = []
released, over = threading.Event(), threading.Event()


def where() -> dict[str, bool]:
    """Say in which thread it runs."""
    return {"is_main": threading.current_thread() is threading.main_thread()}


def block(name: str = "") -> str:
    """Hold its thread until the test lets it go."""
    seen.append(f"began {name}".strip())
    released.wait(SECONDS)
    seen.append(f"ended {name}".strip())
    return name


def look(word: str, context: ToolContext) -> str:
    """Work until nobody waits any more."""
    seen.append(f"began {word}")
    wait_until_sync(lambda: context.cancelled, "its time is over")
    seen.append(context.seconds_left)
    over.wait(PATIENCE_SECONDS)  # it may see the end of its time before the loop does
    return word


def ask(call: Annotated[Context, "of the call"], wood: str = "oak") -> dict[str, Any]:
    """Say what it knows of its call."""
    left = call.seconds_left or 0
    return {"tool": call.tool_name, "call": call.call_id, "user": call.user_id, "wood": wood, "in time": left > 1}


def both(context: ToolContext, call: Context) -> list[str]:
    """Take what the agent says, and what the fleet does."""
    return [context.raw_arg, call.tool_name]


def fail(kind: str) -> None:
    """Raise."""
    raise ERRORS[kind]


def perhaps(word: str, context: Context | None = None) -> str | None:
    """Know its call, if there is one."""
    del word
    return None if context is None else context.tool_name


def tell(call: Context) -> None:
    """Say how far it is, either way."""
    call.progress(0.25, "first")
    report_progress(0.5, "second")


def tell_from_threads(call: Context) -> None:
    """Say how far it is from threads that it has started itself."""
    thread = threading.Thread(target=call.progress, args=(0.25, "a thread"))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call.progress, 0.5, "a pool").result()


def _in_words(function: Callable[..., Coroutine[Any, Any, str]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        seen.append("called")
        released.wait(given.pop("pause", 0) or 0)
        return function(*args, **given)

    return call


@_in_words
async def wrapped(word: str, pause: float = 0) -> str:
    """Is async inside."""
    del pause
    seen.append("awaited")
    return f"{word} in words"


ERRORS: dict[str, BaseException] = {
    "value": ValueError("secret: hunter2"),
    "exit": SystemExit("secret: hunter2"),
    "interrupt": KeyboardInterrupt("secret: hunter2"),
    "stop": StopIteration("secret: hunter2"),
    "cancelled": asyncio.CancelledError("secret: hunter2"),
}


@pytest.fixture
async def executor() -> AsyncIterator[LocalExecutor]:
    own = OwnFunctions(where, block, look, ask, both, fail, perhaps, tell, tell_from_threads, wrapped)
    executor = LocalExecutor(own, max_result_bytes=2**20, threads=THREADS)
    seen.clear()
    for event in (released, over):
        event.clear()
    yield executor
    for event in (released, over):
        event.set()
    await executor.aclose()


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later.here(monkeypatch)


async def run_out(executor: LocalExecutor, later: Later, method: str, **arguments: Any) -> None:
    """Have a call's time end when its function has begun."""
    before = len(seen)
    running = asyncio.create_task(executor.execute(call(method, **arguments), seconds=SECONDS))
    await wait_until(lambda: len(seen) > before, "it has begun")
    later.seconds += SECONDS
    for _ in range(3):  # its timer, its waiter, and who waited
        await asyncio.sleep(0)
    over.set()
    with pytest.raises(TimeoutError):
        await running


async def in_vain(executor: LocalExecutor, later: Later, method: str, **arguments: Any) -> Attempt:
    """What a call comes to that finds no thread in its time."""
    waiting = asyncio.create_task(executor.execute(call(method, **arguments), seconds=SECONDS))
    await asyncio.sleep(0)
    later.seconds += SECONDS
    return await waiting


def call(method: str, effect: Effect | None = None, **arguments: Any) -> PublishedCall:
    return published(f"local.{method}", arguments=arguments, effect=effect)


def follows(attempt: Attempt, *, seconds_left: float) -> Next:
    """What the fleet does after a call's first attempt, as early as it may."""
    return decide(attempt, None, attempts=1, seconds_left=seconds_left, so_far="none", longest_delay=30, jitter=0)


async def test_a_plain_function_runs_in_a_thread(executor: LocalExecutor) -> None:
    """The worker's loop goes on meanwhile."""
    attempt = await executor.execute(call("where"), seconds=SECONDS)
    assert attempt.result.result == {"is_main": False}

    blocked = asyncio.create_task(executor.execute(call("block", name="a"), seconds=SECONDS))
    await wait_until(lambda: seen == ["began a"], "it blocks its thread")
    assert (await executor.execute(call("where"), seconds=SECONDS)).result.success
    released.set()
    assert (await blocked).result.result == "a"


async def test_it_may_know_its_call(executor: LocalExecutor) -> None:
    """By the context that functions of modules have, beside its arguments, and beside the agent's; models see neither."""
    told = (await executor.execute(call("ask"), seconds=SECONDS)).result.result
    assert told == {"tool": "local.ask", "call": "call-1", "user": None, "wood": "oak", "in time": True}
    beside = await executor.execute(call("both", raw_arg="owls"), seconds=SECONDS)
    assert beside.result.result == ["owls", "local.both"]
    assert (await executor.execute(call("perhaps", word="owl"), seconds=SECONDS)).result.result == "local.perhaps"

    schema = there(LocalFunction.of(ask).definition.input_schema)
    assert schema["properties"].keys() == {"wood"}
    assert not LocalFunction.of(ask).definition.takes_context
    assert LocalFunction.of(both).definition.takes_context


@pytest.mark.parametrize(
    ("method", "who"), [("tell", ("first", "second")), ("tell_from_threads", ("a thread", "a pool"))]
)
async def test_it_says_how_far_it_is(executor: LocalExecutor, method: str, who: tuple[str, str]) -> None:
    """From its thread, and from those that it has started itself: its context is the call's in any."""
    heard: list[Progress] = []
    report_to(heard.append)
    assert (await executor.execute(call(method), seconds=SECONDS)).result.success
    assert heard == [Progress(fraction=0.25, message=who[0]), Progress(fraction=0.5, message=who[1])]


@pytest.mark.parametrize("kind", ERRORS)
async def test_what_it_raises_ends_its_call_and_nothing_else(executor: LocalExecutor, kind: str) -> None:
    """The error's kind is told, its text is not."""
    attempt = await executor.execute(call("fail", kind=kind), seconds=SECONDS)
    assert attempt.outcome is Outcome.FAILED
    assert (
        attempt.result.error
        == f"Tool execution error: the function failed ({type(ERRORS[kind]).__name__}); its log says why."
    )
    assert (attempt.result.error_code, attempt.result.effect_state) == ("module_error", "unknown")


async def test_it_is_told_when_its_time_is_over(executor: LocalExecutor, later: Later) -> None:
    """Its caller is told that nobody knows what it did, as of an async one."""
    await run_out(executor, later, "look", word="owls")
    assert seen == ["began owls", 0]


async def test_it_is_told_when_its_call_is_cancelled(executor: LocalExecutor) -> None:
    """Long before its time is over."""
    running = asyncio.create_task(executor.execute(call("look", word="owls"), seconds=1000))
    await wait_until(lambda: seen, "it has begun")
    running.cancel()
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen[0] == "began owls"
    assert seen[1] > 0


async def test_who_finds_no_thread_in_time_is_told_that_nothing_has_happened(
    executor: LocalExecutor, later: Later
) -> None:
    """The function is not called, also not when there is a thread again."""
    running = [asyncio.create_task(executor.execute(call("block"), seconds=2 * SECONDS)) for _ in range(THREADS)]
    await wait_until(lambda: seen == ["began"] * THREADS, "all threads are taken")
    late = await in_vain(executor, later, "block", name="late")

    assert late.outcome is Outcome.TURNED_AWAY
    assert (late.result.error_code, late.result.effect_state) == ("busy", "none")
    assert "no thread was free" in str(late.result.error)
    assert follows(late, seconds_left=ANSWER_SECONDS).delay is None, "a retry would end where this one has"
    assert follows(late, seconds_left=SECONDS).delay is not None
    released.set()
    await asyncio.gather(*running)
    assert (await executor.execute(call("where"), seconds=SECONDS)).result.success
    assert "began late" not in seen


async def test_who_finds_a_thread_in_time_runs(executor: LocalExecutor) -> None:
    """More calls than threads, in their order."""
    calls = [executor.execute(call("block", name=str(number)), seconds=SECONDS) for number in range(3 * THREADS)]
    running = asyncio.gather(*calls)
    await wait_until(lambda: len(seen) == THREADS, "all threads are taken")
    released.set()
    assert [attempt.result.result for attempt in await running] == [str(number) for number in range(3 * THREADS)]


async def test_what_does_not_end_with_its_call_keeps_its_thread(executor: LocalExecutor, later: Later) -> None:
    """Until it returns: more threads than the bound are never at work. Its call is not held up, nor is the worker's end."""
    for _ in range(THREADS):
        await run_out(executor, later, "block")
    busy = await in_vain(executor, later, "where")
    assert busy.result.error_code == "busy"
    await executor.aclose()
    assert seen == ["began"] * THREADS

    released.set()
    assert (await executor.execute(call("where"), seconds=SECONDS)).result.success


async def test_where_all_threads_hang_calls_are_turned_away_at_once(
    executor: LocalExecutor, later: Later, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held by functions whose calls have ended, they may never be free: nobody waits for them, and the log says so once."""
    monkeypatch.setattr(threads, "_HANGING_SECONDS", 0.02)
    for _ in range(THREADS):
        await run_out(executor, later, "block")
    with capture_logs() as logs:
        turned_away = [await executor.execute(call("where"), seconds=1000) for _ in range(2)]

    assert [(each.outcome, each.result.error_code) for each in turned_away] == [(Outcome.TURNED_AWAY, "busy")] * 2
    assert [record.getMessage() for record in caplog.records if record.name == "toolfleet.sdk"] == [
        "All 2 threads are held by functions whose calls have ended: block. Calls are turned away until one returns."
    ]
    assert logs == []
    released.set()
    assert (await executor.execute(call("where"), seconds=SECONDS)).result.success


async def test_one_thread_that_may_become_free_is_waited_for(
    executor: LocalExecutor, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long, and whatever holds the others."""
    monkeypatch.setattr(threads, "_HANGING_SECONDS", 0.02)
    await run_out(executor, later, "block")
    running = asyncio.create_task(executor.execute(call("block", name="at work"), seconds=SECONDS))
    await wait_until(lambda: "began at work" in seen, "all threads are taken")
    waiting = asyncio.create_task(executor.execute(call("where"), seconds=SECONDS))
    for _ in range(5):  # many times as long as one waits for threads that hang
        later.seconds += 1
        await asyncio.sleep(0)
    assert not waiting.done()
    released.set()

    assert [(await each).result.success for each in (running, waiting)] == [True, True]


async def test_a_call_that_is_taken_back_while_it_waits_never_begins(executor: LocalExecutor) -> None:
    """It leaves its place to who comes after it."""
    running = [asyncio.create_task(executor.execute(call("block"), seconds=SECONDS)) for _ in range(THREADS)]
    await wait_until(lambda: len(seen) == THREADS, "all threads are taken")
    waiting = asyncio.create_task(executor.execute(call("block", name="taken back"), seconds=SECONDS))
    after = asyncio.create_task(executor.execute(call("where"), seconds=SECONDS))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    released.set()
    assert (await after).result.success
    await asyncio.gather(*running)
    assert "began taken back" not in seen


class _Over:
    """A lease that ends while its call waits for a thread."""

    attempt = 1
    replica = ""
    is_scattered = False

    def seconds_left(self) -> float:
        return 0

    async def move(self, replica: str) -> None: ...

    def note_request(self, seconds: float, *, ended_at: float) -> None: ...


async def test_what_others_may_have_by_now_is_not_begun(executor: LocalExecutor) -> None:
    """The lease is asked in the thread, immediately before the function."""
    attempt = await executor.execute(call("block"), seconds=SECONDS, lease=_Over())
    assert (attempt.outcome, attempt.result.effect_state, seen) == (Outcome.NOT_SENT, "none", [])


async def test_a_machine_without_threads_is_busy(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has happened, and its place is free again."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(THREADS + 1):
            attempt = await executor.execute(call("where"), seconds=SECONDS)
            assert (attempt.result.error_code, attempt.result.effect_state) == ("busy", "none")
    assert (await executor.execute(call("where"), seconds=SECONDS)).result.success


async def test_a_plain_function_may_make_a_coroutine(executor: LocalExecutor, later: Later) -> None:
    """As one that a decorator has wrapped: it is awaited on the loop, unless its call has ended by then."""
    attempt = await executor.execute(call("wrapped", word="owls"), seconds=SECONDS)
    assert attempt.result.result == "owls in words"
    seen.clear()

    await run_out(executor, later, "wrapped", word="owls", pause=SECONDS)
    released.set()
    assert (await executor.execute(call("where"), seconds=SECONDS)).result.success
    await executor.aclose()
    assert seen == ["called"]


async def test_the_readmes_functions_run(elsewhere: Path) -> None:
    """The async one on the loop, the plain one in a thread."""
    program = programs("docs/guides/tool-folders.md")["owl-tools"]
    (elsewhere / "owl_trees.py").write_text(program)
    executor = LocalExecutor(LocalSource("owl_trees:tools"), max_result_bytes=1000)
    load_local_tools(Settings(local_tools="owl_trees:tools"))

    found = await executor.execute(call("find_owls", wood="Sherwood"), seconds=SECONDS)
    counted = await executor.execute(call("count_trees", most=5), seconds=SECONDS)
    assert (found.result.result, counted.result.result) == (["tawny owl of Sherwood"], 5)
