"""Coroutines under a synchronous caller, in a greenlet or without one, and how they are interrupted."""

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NoReturn

import pytest
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.threads import LocalStack

from toolfleet_tasks.greenlet_bridge import (
    Bridge,
    JobKilled,
    SoftLimitCancelled,
    await_,
    bridged,
    in_bridge,
    limits,
    run_here,
)


def forever() -> Coroutine[Any, Any, Any]:
    return asyncio.Event().wait()


class Superseded(asyncio.CancelledError):
    """Somebody else has the call."""


class Noting(Bridge[Any]):
    """Notes the limits that begin to hold."""

    __slots__ = ("began",)

    def __init__(self) -> None:
        super().__init__()
        self.began = list[object]()

    def on_limits(self, soft: float | None, hard: float | None) -> None:
        self.began.append((soft, hard))


class Job:
    """A coroutine that crosses a bridge, in a greenlet (as Celery calls it) or walking."""

    def __init__(self, *, walks: bool) -> None:
        self.bridge = Noting()
        self.limits: Callable[..., AbstractContextManager[Callable[[BaseException], object]]]
        self.limits = self.bridge.limits if walks else limits
        self._walks = walks

    async def begin(self, body: Callable[[], Coroutine[Any, Any, Any]]) -> "asyncio.Task[Any]":
        """Return its task, which waits for the first time."""
        steps: Awaitable[Any]
        steps = self.bridge.walk(body()) if self._walks else self.bridge.cross(bridged(body, is_limited=False))

        async def run() -> Any:
            return await steps

        task = asyncio.create_task(run())
        await asyncio.sleep(0)
        return task


async def turns(task: "asyncio.Task[Any]", until: Callable[[], bool]) -> None:
    """Let the loop go on until that holds."""
    while not until():
        assert not task.done()
        await asyncio.sleep(0)


@pytest.fixture(params=[False, True], ids=["greenlet", "walks"])
def job(request: pytest.FixtureRequest) -> Job:
    return Job(walks=request.param)


async def test_a_coroutine_waits_and_catches_and_raises(job: Job) -> None:
    """What it awaits may fail, and it may catch that; what it does not catch comes out."""

    async def body() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(forever(), 0)
        raise LookupError(await asyncio.sleep(0, "owl"))

    with pytest.raises(LookupError, match="owl"):
        await (await job.begin(body))


async def test_limits_hold_where_the_coroutine_says_so(job: Job) -> None:
    """Around that part it waits for Redis, however long; whoever sets the limits hears when they begin to hold.

    There the limit is a cancellation, which task groups let pass and whose children end; afterwards timeouts work again.
    """
    claimed, stored, seen, children = asyncio.Event(), asyncio.Event(), list[object](), list[asyncio.Task[Any]]()

    async def body() -> str:
        await claimed.wait()
        try:
            with job.limits(3, 5):
                async with asyncio.TaskGroup() as group:
                    children.extend(group.create_task(forever()) for _ in range(3))
        except SoftTimeLimitExceeded as exc:
            seen.append(exc.args)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(forever(), 0)
        await stored.wait()
        return "stored"

    task = await job.begin(body)
    assert (job.bridge.is_in_body, job.bridge.limit(3)) == (False, False)
    claimed.set()
    await turns(task, lambda: len(children) == 3)
    assert (job.bridge.is_in_body, job.bridge.limit(3)) == (True, True)
    await turns(task, lambda: not job.bridge.is_in_body)
    assert not job.bridge.limit(3)
    stored.set()

    assert (await task, task.cancelling()) == ("stored", 0)
    assert (job.bridge.began, seen) == ([(3, 5)], [(3,)])
    assert all(child.cancelled() for child in children)


async def test_a_limit_that_is_not_caught_is_celerys_own(job: Job) -> None:
    """No cancellation reaches Celery."""

    async def body() -> None:
        with job.limits():
            await forever()

    task = await job.begin(body)
    job.bridge.limit(3)

    with pytest.raises(SoftTimeLimitExceeded) as raised:
        await task
    assert type(raised.value) is SoftTimeLimitExceeded
    assert raised.value.args == (3,)


@pytest.mark.parametrize("is_swallowed", [False, True])
async def test_a_coroutine_can_be_interrupted_where_its_limits_hold(job: Job, *, is_swallowed: bool) -> None:
    """With an exception of the caller's own, also if a library swallows the cancellation; elsewhere that does nothing."""
    interrupts = list[Callable[[BaseException], object]]()

    async def swallow() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    async def body() -> str:
        try:
            with job.limits() as interrupt:
                interrupts.append(interrupt)
                async with asyncio.TaskGroup() as group:
                    group.create_task(swallow() if is_swallowed else forever())
                await forever()
        except Superseded:
            interrupts[0](Superseded())  # too late, and nothing happens
            await asyncio.sleep(0)
        return "superseded"

    task = await job.begin(body)
    interrupts[0](Superseded())

    assert (await task, task.cancelling()) == ("superseded", 0)


async def test_a_killed_job_cleans_up_and_counts_for_nothing(job: Job) -> None:
    """Its coroutine is cancelled; what it returns is dropped."""
    steps: list[str] = []

    async def body() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("cleaned up")
        return "as if nothing had happened"

    task = await job.begin(body)
    job.bridge.kill()

    with pytest.raises(JobKilled):
        await task
    assert steps == ["cleaned up"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the coroutine protests to the end
async def test_a_job_that_swallows_everything_is_abandoned(job: Job) -> None:
    """Cancellation and closing: the job ends, the coroutine stays behind."""
    swallowed = list[BaseException]()

    async def body() -> NoReturn:
        while True:
            try:
                await forever()
            except BaseException as exc:  # noqa: BLE001 - that is the point
                swallowed.append(exc)
                await asyncio.sleep(0)

    task = await job.begin(body)
    job.bridge.kill()
    await turns(task, lambda: bool(swallowed))
    job.bridge.abandon()

    with pytest.raises(JobKilled):
        await task
    gc.collect()


async def test_a_job_whose_task_is_closed_ends_in_order(job: Job) -> None:
    """Its coroutine gets the chance to clean up that Python gives to any."""
    steps: list[str] = []

    async def body() -> None:
        try:
            await forever()
        finally:
            steps.append("cleaned up")

    task = await job.begin(body)
    coroutine: Any = task.get_coro()
    coroutine.close()
    assert steps == ["cleaned up"]
    task.cancel()
    with pytest.raises(RuntimeError, match="already awaited"):
        await task


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
async def test_what_would_end_a_walk_silently_is_an_error(kind: type[BaseException]) -> None:
    """Whoever awaits it hears of it, and its call has an end."""

    async def body() -> None:
        await asyncio.sleep(0)
        raise kind

    with pytest.raises(RuntimeError, match=f"coroutine raised {kind.__name__}"):
        await Bridge[Any]().walk(body())


async def test_several_may_cross_one_bridge() -> None:
    """One after the other, whatever became of the first; where one walks, `await_` has no greenlet to leave."""

    async def walk() -> None:
        await_(asyncio.sleep(0))

    bridge = Bridge[Any]()
    with pytest.raises(RuntimeError, match="await_"):
        await bridge.walk(walk())
    assert await bridge.cross(lambda: await_(asyncio.sleep(0, "crossed"))) == "crossed"


@bridged
async def double(number: int, *, unit: str = "owls") -> int:
    """Twice the number."""
    del unit
    await asyncio.sleep(0)
    return 2 * number


def test_a_bridged_function_can_be_called_anywhere() -> None:
    """Outside of the pool it runs in a loop of its own, and looks as it was written."""
    assert double(21) == 42
    assert double.__doc__ == "Twice the number."
    assert list(inspect.signature(double).parameters) == ["number", "unit"]
    assert not inspect.iscoroutinefunction(double)


async def test_in_a_running_loop_a_bridged_function_says_what_to_do() -> None:
    """It cannot wait there; the coroutine function itself can be awaited."""
    with pytest.raises(RuntimeError, match=r"await double.__wrapped__\(\.\.\.\) instead"):
        double(21)

    assert await inspect.unwrap(double)(21) == 42


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


async def test_await_works_in_a_job_only() -> None:
    """Elsewhere it raises, and leaves no coroutine behind that was never awaited."""
    assert not in_bridge()
    with pytest.raises(RuntimeError, match="only in the code of a job"):
        await_(asyncio.sleep(0))


async def test_synchronous_code_of_a_job_waits() -> None:
    """For coroutines and for futures, while other tasks of the loop run; errors arrive where it waits."""
    loop = asyncio.get_running_loop()
    future, broken = loop.create_future(), loop.create_future()

    def code() -> list[object]:
        with pytest.raises(KeyError):
            await_(broken)
        return [in_bridge(), await_(future), double(4), await_(asyncio.sleep(0, "slept"))]

    task = asyncio.ensure_future(Bridge(code))
    await asyncio.sleep(0)
    broken.set_exception(KeyError("lost"))
    future.set_result("set")

    assert await task == [True, "set", 8, "slept"]


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


async def test_the_limits_of_a_bridged_body_hold_for_all_of_it_and_for_nothing_else() -> None:
    """Inside a limit is a cancellation as well; what Celery does around it, storing the result say, is not interrupted."""
    seen, stored = list[BaseException](), asyncio.Event()

    @bridged
    async def body() -> None:
        try:
            await forever()
        except asyncio.CancelledError as exc:
            seen.append(exc)
            raise

    def code() -> str:
        with pytest.raises(SoftTimeLimitExceeded):
            body()
        await_(stored.wait())
        return "stored"

    bridge = Bridge(code)
    task = asyncio.ensure_future(bridge)
    await asyncio.sleep(0)
    assert bridge.limit(3)
    await turns(task, lambda: bool(seen) and not bridge.is_in_body)
    assert not bridge.limit(3)
    stored.set()

    assert await task == "stored"
    assert [type(exc) for exc in seen] == [SoftLimitCancelled]


async def test_outside_of_the_pool_there_are_no_limits() -> None:
    """Under another pool `limits` does nothing, and what it yields interrupts nobody."""
    with limits() as interrupt:
        assert not interrupt(asyncio.CancelledError())
        await asyncio.sleep(0)


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
