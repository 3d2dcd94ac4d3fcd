"""The fleet's own app in fast mode, with the tasks of `pool_app` instead of modules."""

import asyncio
import os
from pathlib import Path

from celery import Task

from support.workers import pool_app
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.greenlet_bridge import bridged
from toolfleet_workers.pool import bootsteps


@bridged
async def swell(size: int) -> str:
    """A result of that many bytes."""
    return "x" * size


@bridged
async def held(gate: str, seconds: float, ended: str) -> None:
    """Wait until there is such a file, and then so long; write a byte into another one as this is over."""
    while not Path(gate).exists():  # noqa: ASYNC110 - who makes it is another process
        await asyncio.sleep(0.02)
    await asyncio.sleep(seconds)
    with Path(ended).open("a") as file:  # noqa: ASYNC230 - a byte
        file.write(".")


@bridged
async def deliveries(task: Task) -> bool:
    """Whether the broker had given this call to a worker before."""
    return bool(task.request.delivery_info.get("redelivered"))


app = make_app(load_settings())
app.conf.task_track_started = True  # what the tests of the pool wait for
app.runner = pool_app.Runner()  # type: ignore[assignment] # no call reaches it
if patience := os.environ.get("FAST_APP_PATIENCE_SECONDS"):
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "socket_timeout": float(patience)}
bootsteps.install(app)
for function in (held, pool_app.fail, pool_app.leave, pool_app.sleep, pool_app.stubborn, swell):
    app.task(name=f"pool.{function.__name__}")(function)
app.task(name="pool.deliveries", bind=True)(deliveries)
