"""Coroutines that cross the bridge without a greenlet: interrupted as those within one are."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from support.waiting import wait_until
from toolfleet_tasks.aio.coroutine_driver import JobKilled
from toolfleet_tasks.aio.greenlet_bridge import Bridge, await_


async def start(bridge: Bridge[Any], steps: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """The coroutine's task, waiting for the first time."""

    async def job() -> Any:
        return await bridge.walk(steps)

    task = asyncio.create_task(job())
    await asyncio.sleep(0)
    return task


async def test_it_waits_and_returns_what_the_coroutine_does() -> None:
    """What it awaits may fail, and it may catch that; `await_` has no greenlet to leave."""

    async def body() -> list[object]:
        seen: list[object] = [await asyncio.sleep(0, "slept")]
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            seen.append("timed out")
        with pytest.raises(RuntimeError, match="await_"):
            await_(asyncio.sleep(0))
        return seen

    bridge = Bridge[Any]()
    assert await bridge.walk(body()) == ["slept", "timed out"]


async def test_what_it_raises_passes() -> None:
    """And a function may cross the same bridge afterwards, with the end of the first."""

    async def body() -> None:
        await asyncio.sleep(0)
        raise LookupError("owl")

    bridge = Bridge[Any]()
    with pytest.raises(LookupError, match="owl"):
        await bridge.walk(body())
    assert await bridge.cross(lambda: await_(asyncio.sleep(0, "crossed"))) == "crossed"


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
async def test_what_would_end_us_silently_is_an_error(kind: type[BaseException]) -> None:
    """Whoever awaits it hears of it, and its call has an end."""

    async def body() -> None:
        await asyncio.sleep(0)
        raise kind

    with pytest.raises(RuntimeError, match=f"coroutine raised {kind.__name__}"):
        await Bridge[Any]().walk(body())


async def test_its_limits_hold_where_it_says_so() -> None:
    """There the soft limit is a cancellation as well, that task groups let pass; afterwards timeouts work again."""
    seen: list[object] = []

    async def body() -> str:
        await asyncio.sleep(0.005)
        try:
            with bridge.limits(3, 5):
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(60))
        except SoftTimeLimitExceeded as exc:
            seen.append(exc.args)
        async with asyncio.timeout(10):
            await asyncio.sleep(0.005)
        return "stored"

    bridge = Bridge[Any]()
    bridge.on_limits = lambda soft, hard: seen.append((soft, hard))
    task = await start(bridge, body())
    assert not bridge.limit(3)
    await wait_until(lambda: bridge.is_in_body, "the limited part has begun")
    assert bridge.limit(3)

    assert await task == "stored"
    assert (seen, task.cancelling()) == ([(3, 5), (3,)], 0)


async def test_a_limit_that_it_does_not_catch_is_celerys_own() -> None:
    """No cancellation reaches Celery."""

    async def body() -> None:
        with bridge.limits():
            await asyncio.sleep(60)

    bridge = Bridge[Any]()
    task = await start(bridge, body())
    bridge.limit(3)

    with pytest.raises(SoftTimeLimitExceeded) as raised:
        await task
    assert type(raised.value) is SoftTimeLimitExceeded


async def test_an_interrupt_comes_though_somebody_has_swallowed_its_cancellation() -> None:
    """A library that catches every cancellation does not keep it from the coroutine."""

    class Superseded(asyncio.CancelledError):
        """Somebody else has it."""

    async def swallow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    async def body() -> str:
        try:
            with bridge.limits() as interrupt:
                interrupts.append(interrupt)
                await asyncio.wait([asyncio.ensure_future(swallow())], timeout=0.01)
                await asyncio.sleep(60)
        except Superseded:
            return "superseded"
        return "not interrupted"

    bridge, interrupts = Bridge[None](), list[Callable[[BaseException], object]]()
    task = await start(bridge, body())
    interrupts[0](Superseded())

    assert await task == "superseded"


async def test_a_killed_one_cleans_up_and_counts_for_nothing() -> None:
    """What it returns is dropped."""
    steps: list[str] = []

    async def body() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("cleaned up")
        return "as if nothing had happened"

    bridge = Bridge[Any]()
    task = await start(bridge, body())
    bridge.kill()

    with pytest.raises(JobKilled):
        await task
    assert steps == ["cleaned up"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the coroutine protests to the end
async def test_one_that_swallows_everything_is_abandoned() -> None:
    """Cancellation and closing: the job ends, the coroutine stays behind."""

    async def body() -> NoReturn:
        while True:
            try:
                await asyncio.sleep(60)
            except BaseException:  # noqa: BLE001 - that is the point
                await asyncio.sleep(0)

    bridge = Bridge[Any]()
    task = await start(bridge, body())
    bridge.kill()
    await asyncio.sleep(0.01)
    assert not task.done()
    bridge.abandon()

    with pytest.raises(JobKilled):
        await task
    gc.collect()


async def test_one_whose_task_is_closed_ends_in_order() -> None:
    """It gets the chance to clean up that Python gives to any."""
    steps: list[str] = []

    async def body() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("cleaned up")

    task = await start(Bridge[Any](), body())
    coroutine: Any = task.get_coro()
    coroutine.close()
    assert steps == ["cleaned up"]
    task.cancel()
    with pytest.raises(RuntimeError, match="already awaited"):
        await task
