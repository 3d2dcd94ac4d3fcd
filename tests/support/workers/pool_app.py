"""A small Celery app for the tests of the pool: tasks that wait, fail, refuse to end, or block."""

import asyncio
import ctypes
import os
import subprocess
import time
from collections import defaultdict
from contextvars import ContextVar
from typing import Any, NoReturn

import aiohttp
from celery import Celery, Task, current_task
from celery.exceptions import SoftTimeLimitExceeded
from kombu.entity import Queue

from support.waiting import PATIENCE_SECONDS
from support.workers.pool_worker import QUEUE, REDIS_VARIABLE
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.control import startup_checks
from toolfleet_tasks.greenlet_bridge import bridged
from toolfleet_workers.pool import bootsteps

_mark: ContextVar[str | None] = ContextVar("mark", default=None)
_gathered = defaultdict[str, set[str]](set)
_all_are_in = defaultdict[str, asyncio.Event](asyncio.Event)


class Runner:
    """Stands for the fleet's runner: something to close on the loop."""

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        print("runner closed", flush=True)  # noqa: T201


@bridged
async def sleep(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@bridged
async def echo(task: Task, pauses: int) -> list[str]:
    """The ids that the task sees before, between and after its pauses."""
    current: Any = current_task
    seen = [current.request.id, task.request.id]
    for pause in range(pauses):
        await asyncio.sleep(0.01 * (pause + 1))
        seen += [current.request.id, task.request.id]
    return seen


@bridged
async def mark(value: str) -> list[str | None]:
    """What the context variable held before it was set, and after a pause."""
    before = _mark.get()
    _mark.set(value)
    await asyncio.sleep(0.3)
    return [before, _mark.get()]


@bridged
async def gather(call: str, calls: int, seconds: float) -> int:
    """Wait until `calls` calls are inside whose names differ in their last word, then `seconds` more."""
    group = call.rpartition(" ")[0]
    _gathered[group].add(call)
    if len(_gathered[group]) == calls:
        _all_are_in[group].set()
    await _all_are_in[group].wait()
    await asyncio.sleep(seconds)
    return len(_gathered[group])


@bridged
async def careful() -> str:
    """Return in spite of the soft limit, after a pause."""
    try:
        await asyncio.sleep(60)
    except SoftTimeLimitExceeded:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.sleep(0.01)
        return "cleaned up"
    return "never interrupted"


@bridged
async def group(url: str) -> None:
    """Ask for one page four times over, in a task group."""
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as children:
        for _ in range(4):
            children.create_task(_fetch(session, url))


@bridged
async def request(url: str) -> str:
    async with aiohttp.ClientSession() as session:
        return await _fetch(session, url)


@bridged
async def stubborn() -> NoReturn:
    """Swallow every cancellation, and the closing of the coroutine as well."""
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:  # noqa: BLE001 - that is the point
            await asyncio.sleep(0)


@bridged
async def delegating() -> str:
    """Wait for a child task that swallows its cancellation, and return as if nothing had happened."""
    await asyncio.create_task(_unimpressed())
    return "not limited"


@bridged
async def fail() -> NoReturn:
    await asyncio.sleep(0)
    raise ValueError("no")


@bridged
async def leave() -> NoReturn:
    raise SystemExit(3)


@bridged
async def cancel_itself() -> None:
    this = asyncio.current_task()
    assert this is not None
    this.cancel()
    await asyncio.sleep(60)


@bridged
async def retry(task: Task) -> NoReturn:
    """Fail, once more a little later, and then for good."""
    await asyncio.sleep(0)
    raise task.retry(exc=ValueError("still no"), countdown=0.1, max_retries=1)


@bridged
async def block(seconds: float) -> None:
    """Do what no task body may do."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@bridged
async def hold(seconds: float) -> None:
    """Do what keeps the interpreter's lock until it is over: one operation in C, which no signal ends."""
    with subprocess.Popen(["sleep", str(seconds)]) as child:  # noqa: ASYNC220, S607 - on PATH; it blocks on purpose
        ctypes.PyDLL(None).waitpid(child.pid, None, 0)


async def _fetch(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


async def _unimpressed() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0)


app: Any = Celery("pool", broker=os.environ.get(REDIS_VARIABLE), backend=os.environ.get(REDIS_VARIABLE))
app.settings = load_settings()
app.runner = Runner()
app.lane = "slow"
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_default_queue=QUEUE,
    task_queues=[Queue(QUEUE)],
    task_track_started=True,
    worker_pool="toolfleet_workers.pool.asyncio_pool:AsyncioPool",
    worker_pool_restarts=True,
    worker_prefetch_multiplier=1,
    worker_redirect_stdouts=False,
    worker_send_task_events=True,
    # A worker that ends waits for the answer to its last question for messages: by default for up to a second.
    broker_transport_options={"max_connections": 100, "priority_steps": [0], "polling_interval": 0.2},
    result_expires=600,
)
bootsteps.install(app)
startup_checks.install(app)
for function in (
    block,
    cancel_itself,
    careful,
    delegating,
    fail,
    gather,
    group,
    hold,
    leave,
    request,
    sleep,
    stubborn,
):
    app.task(name=f"pool.{function.__name__}")(function)
# Acked when they begin, so that more of them arrive than there are slots.
app.task(name="pool.mark", acks_late=False)(mark)
app.task(name="pool.doze", acks_late=False)(sleep)
for bound in (echo, retry):
    app.task(name=f"pool.{bound.__name__}", bind=True)(bound)
