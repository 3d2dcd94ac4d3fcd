"""Workers in this process that run calls of a module with several processes, from the claim to the result, as Celery has them do it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry

from support.workers.ledgers import worker_ledger
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.directory.entries import Replica
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.greenlet_bridge import limits
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.results.stored import read_stored
from toolfleet_tasks.worker_runtime import WorkerRuntime
from toolfleet_workers.execution import execute
from toolfleet_workers.execution.health_checks import HealthChecks
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor
from toolfleet_workers.runner import CallRunner

SERVICES = {"owls": "http://127.0.0.1:1"}


class ReplicaWorker:
    """One worker; it knows the processes that it was told of last."""

    def __init__(self, ledger: Ledger, here: WorkerRuntime) -> None:
        self.http = HttpExecutor({}, client=HttpClient(), max_reply_bytes=2**20)
        runner = CallRunner(self.http, [], replica_for=self.http.replica_for)
        self.checks = HealthChecks(here, ledger._settings, runner, ledger)
        app = SimpleNamespace(
            runner=runner, settings=ledger._settings, tracing=None, checks=self.checks, keep_artifacts=None
        )
        request = SimpleNamespace(hostname="celery@here", retries=0)
        self._ledger = ledger
        self._task: Any = SimpleNamespace(app=app, request=request, limits=limits, is_followed=False, links=None)

    def serve(self, replicas: Sequence[Replica]) -> None:
        self.http.serve(SERVICES, replicas={"owls": tuple(replicas)})

    async def run(self, call: PublishedCall) -> ToolResult | None:
        """One delivery of the call; `None` if it is to be delivered again."""
        try:
            claim = await self.checks.claim(call, deaths=0)
            if isinstance(claim, Claim):
                await execute.claimed(self._task, self._ledger, claim, None)
            else:
                await execute.unclaimed(self._task, self._ledger, call, claim, deaths=0)
        except (Retry, Reject, Ignore):
            return None
        stored = await self._ledger.connection.execute("GET", Keys().result(call.call_id))
        return read_stored(stored.decode(), call.tool_name)


@asynccontextmanager
async def replica_workers(
    url: str, monkeypatch: pytest.MonkeyPatch, *, count: int = 2
) -> AsyncGenerator[list[ReplicaWorker]]:
    """So many, each with a ledger of its own. What they would publish again, whoever calls them delivers."""

    async def published_again(*_: object, **__: object) -> None: ...

    async def put_off(*_: object, **__: object) -> None:
        raise Reject(requeue=True)

    monkeypatch.setattr(execute, "publish_again", published_again)
    monkeypatch.setattr(execute, "put_off", put_off)
    monkeypatch.setattr(execute, "checks_of", lambda app, _: app.checks)
    monkeypatch.setattr("toolfleet_tasks.ledger.parameters.BREAKER_FAILURES", 1000)
    settings: dict[str, Any] = {"visibility_timeout": 2}
    async with worker_ledger(url, **settings) as first, worker_ledger(url, **settings) as second:
        loop = asyncio.get_running_loop()
        workers = [ReplicaWorker(ledger, WorkerRuntime(loop, url, None)) for ledger in (first, second)][:count]
        yield workers
        for worker in workers:
            await worker.checks.aclose()
            await worker.http.aclose()


async def deliver(
    workers: Sequence[ReplicaWorker], call: PublishedCall, *, dies: float | None = None, pause: float = 0
) -> ToolResult:
    """Deliver a call until it has its result, to one worker after the other.

    The first one `dies` so many seconds after it has it, and `pause` seconds later another one gets it.
    """
    first, *_ = workers
    if dies is not None:
        running = asyncio.ensure_future(first.run(call))
        await asyncio.wait([running], timeout=dies)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(pause)
    turn = 0
    while (result := await workers[turn % len(workers)].run(call)) is None:
        turn += 1
        await asyncio.sleep(0.05)
    return result
