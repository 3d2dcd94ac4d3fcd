"""The bridge by itself: coroutines under a synchronous caller, and how they are interrupted."""

import asyncio
import functools
import gc
import inspect
import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import pytest
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.threads import LocalStack

from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_tasks.aio.coroutine_driver import JobKilled
from toolfleet_tasks.aio.greenlet_bridge import (
    Bridge,
    SoftLimitCancelled,
    await_,
    bridged,
    in_bridge,
    limits,
    require_greenlet_stacks,
    run_here,
)


@bridged
async def double(number: int, *, pause: float = 0) -> int:
    """Twice the number."""
    await asyncio.sleep(pause)
    return 2 * number


async def start(bridge: Bridge[Any]) -> "asyncio.Task[Any]":
    """The bridge's task, waiting for the first time."""

    async def job() -> Any:
        return await bridge

    task = asyncio.create_task(job())
    await asyncio.sleep(0)
    return task


def test_a_bridged_function_can_be_called_anywhere() -> None:
    """Outside of the pool it runs in a loop of its own, and looks as it was written."""
    assert double(21) == 42
    assert double.__doc__ == "Twice the number."
    assert list(inspect.signature(double).parameters) == ["number", "pause"]
    assert not inspect.iscoroutinefunction(double)


async def _loop_and_sum(number: int) -> tuple[object, int]:
    await asyncio.sleep(0)
    return asyncio.get_running_loop(), number + 1


async def test_where_celery_calls_a_coroutine_runs_on_the_loop_of_the_bridge() -> None:
    """The code that has called it waits, and goes on with what it returns."""
    assert await Bridge(lambda: run_here(_loop_and_sum(1))) == (asyncio.get_running_loop(), 2)


def test_where_there_is_no_bridge_it_has_a_loop_of_its_own() -> None:
    """One that is closed when it has ended; what it raises comes out."""
    loop, number = run_here(_loop_and_sum(1))

    assert (loop.is_closed(), number) == (True, 2)  # type: ignore[attr-defined] # it is a loop
    with pytest.raises(TypeError):
        run_here(_loop_and_sum("1"))  # type: ignore[arg-type] # on purpose


async def test_in_a_running_loop_a_bridged_function_says_what_to_do() -> None:
    """It cannot wait there; the coroutine function itself can be awaited."""
    with pytest.raises(RuntimeError, match=r"await double.__wrapped__\(\.\.\.\) instead"):
        double(21)

    assert await inspect.unwrap(double)(21) == 42


async def test_await_works_in_a_job_only() -> None:
    """Elsewhere it raises, and leaves no coroutine behind that was never awaited."""
    assert not in_bridge()
    with pytest.raises(RuntimeError, match="only in the code of a job"):
        await_(asyncio.sleep(0))


async def test_synchronous_code_of_a_job_waits() -> None:
    """For coroutines and for futures, while other tasks of the loop run."""
    future = asyncio.get_running_loop().create_future()

    def code() -> list[object]:
        return [in_bridge(), await_(future), double(4, pause=0.01), await_(asyncio.sleep(0, "slept"))]

    task = await start(Bridge(code))
    future.set_result("set")

    assert await task == [True, "set", 8, "slept"]


async def test_errors_arrive_where_the_code_waits() -> None:
    """And what the code does not catch leaves the bridge."""

    async def fail() -> NoReturn:
        await asyncio.sleep(0)
        raise KeyError("lost")

    def code() -> None:
        with pytest.raises(KeyError):
            await_(fail())
        await_(fail())

    with pytest.raises(KeyError):
        await Bridge(code)


async def test_each_job_has_stacks_and_context_of_its_own() -> None:
    """Interleaved jobs see their own top of a stack of Celery's; their context is that of their asyncio task."""
    stack = LocalStack()
    variable = ContextVar[int]("variable")

    def code(number: int) -> list[object]:
        stack.push(number)
        seen = variable.get()
        variable.set(2 * number)
        for _ in range(3):
            await_(asyncio.sleep(0))
        return [stack.pop(), seen, variable.get()]

    async def job(number: int) -> list[object]:
        variable.set(number)
        return [*await Bridge(code, number), variable.get()]

    ends = await asyncio.gather(*[job(number) for number in range(20)])

    assert ends == [[number, number, 2 * number, 2 * number] for number in range(20)]


async def test_the_soft_limit_leaves_the_body_as_celerys_own() -> None:
    """Inside it is also a cancellation; afterwards the task counts as not cancelled, so that timeouts work again."""
    seen: list[BaseException] = []

    @bridged
    async def body() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as exc:
            seen.append(exc)
            async with asyncio.timeout(10), asyncio.TaskGroup():
                await asyncio.sleep(0)
            raise

    bridge = Bridge(body)
    task = await start(bridge)

    assert bridge.limit(3)
    with pytest.raises(SoftTimeLimitExceeded) as raised:
        await task
    assert type(raised.value) is SoftTimeLimitExceeded
    assert raised.value.args == (3,)
    assert [type(exc) for exc in seen] == [SoftLimitCancelled]
    assert task.cancelling() == 0


async def test_the_soft_limit_passes_through_a_task_group() -> None:
    """Its children are cancelled, and no exception group hides the limit."""
    children: list[asyncio.Task[None]] = []

    @bridged
    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            children.extend(group.create_task(asyncio.sleep(60)) for _ in range(3))

    bridge = Bridge(body)
    task = await start(bridge)
    bridge.limit(3)

    with pytest.raises(SoftTimeLimitExceeded):
        await task
    assert all(child.cancelled() for child in children)


async def test_the_soft_limit_concerns_the_body_only() -> None:
    """What Celery does around it, storing the result for example, is not interrupted."""

    def code() -> str:
        result = double(4)
        await_(asyncio.sleep(0.01))
        return f"stored {result}"

    bridge = Bridge(code)
    task = await start(bridge)
    await asyncio.sleep(0.005)

    assert not bridge.limit(3)
    assert await task == "stored 8"


async def test_a_body_may_say_where_its_limits_hold() -> None:
    """Around that part it waits for Redis, however long; whoever sets the limits hears when they begin to hold."""
    steps: list[str] = []

    @functools.partial(bridged, is_limited=False)
    async def body() -> str:
        await asyncio.sleep(0.01)  # a claim
        try:
            with limits(3, 5):
                await asyncio.sleep(60)
        except SoftTimeLimitExceeded:
            steps.append("limited")
        await asyncio.sleep(0.01)  # the result
        return "stored"

    bridge = Bridge(body)
    bridge.on_limits = lambda soft, hard: steps.append(f"{soft} and {hard}")
    task = await start(bridge)
    assert not bridge.is_in_body
    assert not bridge.limit(3)
    await wait_until(lambda: bridge.is_in_body, "the limited part has begun")
    assert bridge.limit(3)
    await wait_until(lambda: not bridge.is_in_body, "the limited part has ended")
    assert not bridge.limit(3)

    assert await task == "stored"
    assert steps == ["3 and 5", "limited"]


async def test_a_body_can_be_interrupted_where_its_limits_hold() -> None:
    """With an exception of the caller's own, which passes through task groups; elsewhere that does nothing."""

    class Superseded(asyncio.CancelledError):
        """Somebody else has it."""

    interrupts: list[Callable[[BaseException], object]] = []

    @functools.partial(bridged, is_limited=False)
    async def body() -> str:
        try:
            with limits() as interrupt:
                interrupts.append(interrupt)
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(60))
        except Superseded:
            interrupts[0](Superseded())  # too late, and nothing happens
            async with asyncio.timeout(10):
                await asyncio.sleep(0.01)
        return "superseded"

    task = await start(Bridge(body))
    interrupts[0](Superseded())

    assert await task == "superseded"
    assert task.cancelling() == 0


async def test_outside_of_the_pool_there_are_no_limits() -> None:
    """Under another pool `limits` does nothing, and what it yields interrupts nobody."""
    with limits() as interrupt:
        assert not interrupt(asyncio.CancelledError())
        await asyncio.sleep(0)


async def test_a_killed_job_cleans_up_and_counts_for_nothing() -> None:
    """Its coroutine is cancelled; what it returns is dropped."""
    steps: list[str] = []

    @bridged
    async def body() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("cleaned up")
        return "as if nothing had happened"

    bridge = Bridge(body)
    task = await start(bridge)
    bridge.kill()

    with pytest.raises(JobKilled):
        await task
    assert steps == ["cleaned up"]


async def test_a_job_that_is_killed_before_its_body_never_runs_it() -> None:
    """Revoked while the tracer was still at its preparations."""
    started: list[str] = []

    @bridged
    async def body() -> None:
        started.append("body")

    bridge = Bridge(body)
    bridge.killed = True

    with pytest.raises(JobKilled):
        await bridge
    assert started == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the coroutine protests to the end
async def test_a_job_that_swallows_everything_is_abandoned() -> None:
    """Cancellation and closing: the job ends, the coroutine stays behind."""

    @bridged
    async def body() -> NoReturn:
        while True:
            try:
                await asyncio.sleep(60)
            except BaseException:  # noqa: BLE001 - that is the point
                await asyncio.sleep(0)

    bridge = Bridge(body)
    task = await start(bridge)
    bridge.kill()
    await asyncio.sleep(0.01)
    assert not task.done()
    bridge.abandon()

    with pytest.raises(JobKilled):
        await task
    gc.collect()


async def test_a_job_whose_task_is_closed_ends_in_order() -> None:
    """Its coroutine gets the chance to clean up that Python gives to any."""
    steps: list[str] = []

    @bridged
    async def body() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("cleaned up")

    task = await start(Bridge(body))
    coroutine: Any = task.get_coro()
    coroutine.close()
    assert steps == ["cleaned up"]

    task.cancel()
    with pytest.raises(RuntimeError, match="already awaited"):
        await task


def test_celery_checks_the_arguments_of_a_bridged_task() -> None:
    """Before anything is published, as for any task."""
    app: Any = Celery(set_as_current=False)
    task = app.task(name="double")(double)

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        task.apply_async(())


def test_celery_retries_a_bridged_task_by_itself() -> None:
    """`autoretry_for` sees what the coroutine raises."""
    app: Any = Celery(set_as_current=False)
    retries: list[int] = []

    @bridged
    async def flaky(task: Task) -> str:
        await asyncio.sleep(0)
        retries.append(task.request.retries)
        if task.request.retries == 0:
            raise ValueError("not yet")
        return "now"

    task = app.task(name="flaky", bind=True, autoretry_for=(ValueError,), retry_backoff=False, max_retries=1)(flaky)

    assert task.apply().get() == "now"
    assert retries == [0, 1]


def test_stacks_by_thread_are_refused() -> None:
    """With `USE_FAST_LOCALS` every call would see another call's request."""
    require_greenlet_stacks()
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "from toolfleet_tasks.aio.greenlet_bridge import require_greenlet_stacks; require_greenlet_stacks()",
        ],
        env={"USE_FAST_LOCALS": "1"},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )

    assert ended.returncode == 1
    assert "unset USE_FAST_LOCALS" in ended.stderr
