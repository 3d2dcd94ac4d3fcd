"""The ledger in a worker: one for its loop, or one for a single call."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.redis.connection import Line
from toolfleet_tasks.worker_runtime import WorkerRuntime


def ledger_of(here: WorkerRuntime, settings: Settings) -> Ledger:
    """The one of this worker's loop."""
    return here.part(_make_ledger, settings)


@asynccontextmanager
async def own_ledger(settings: Settings) -> AsyncGenerator[Ledger]:
    """For one call, under a pool without a loop of its own."""
    line = Line(connection_factory(str(settings.redis_url), master=settings.sentinel_master), name="call")
    line.start()
    ledger = Ledger(line, settings, writes_results=settings.is_fast)
    try:
        yield ledger
    finally:
        await ledger.claims.aclose()
        await line.aclose()


def _make_ledger(here: WorkerRuntime, settings: Settings) -> Ledger:
    line = here.to(str(settings.redis_url), master=settings.sentinel_master)
    ledger = Ledger(line, settings, writes_results=settings.is_fast)
    here.settle.append(ledger.claims.aclose)
    return ledger
