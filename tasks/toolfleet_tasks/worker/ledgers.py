"""Opens the ledger in a worker: one for its loop, or one for a single call."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.process import Process, this_process
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.worker_runtime import WorkerRuntime


def ledger_of(here: WorkerRuntime, settings: Settings, worker: str | None = None) -> Ledger:
    """The one of this worker's loop; `worker`: as Celery names it, where that is known."""
    ledger = here.part(_make_ledger, settings)
    ledger.tokens.serve(worker)
    return ledger


def calls_held(process: Process | None = None) -> Counter[str]:
    """Count the calls that a process, or this one, runs of each module, if it is a worker. May be called from any thread."""
    here: WorkerRuntime | None = (process or this_process()).worker
    ledger = None if here is None else here.made(_make_ledger)
    return Counter() if ledger is None else ledger.claims.held()


@asynccontextmanager
async def own_ledger(settings: Settings, worker: str | None = None) -> AsyncGenerator[Ledger]:
    """Open a ledger for one call of this worker, under a pool without a loop of its own."""
    connection = PipelinedConnection(
        connection_factory(str(settings.redis_url), master=settings.sentinel_master), name="call"
    )
    connection.start()
    ledger = Ledger(connection, settings, writes_results=settings.has_redis_broker)
    ledger.tokens.serve(worker)
    try:
        yield ledger
    finally:
        await ledger.claims.aclose()
        await connection.aclose()


def _make_ledger(here: WorkerRuntime, settings: Settings) -> Ledger:
    connection = here.to(str(settings.redis_url), master=settings.sentinel_master)
    ledger = Ledger(connection, settings, writes_results=settings.has_redis_broker)
    ledger.tokens.begin_with(here.name)
    here.settle.append(ledger.claims.aclose)
    return ledger
