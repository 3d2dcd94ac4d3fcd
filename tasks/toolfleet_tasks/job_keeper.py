"""What keeps jobs going in a worker: claims what is due, looks at jobs whose call has ended, has news delivered."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakKeyDictionary

import structlog

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis_servers import connection_factory
from toolfleet_tasks import lines, wire
from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.job_ends import ThenCall
from toolfleet_tasks.job_ids import RESUME
from toolfleet_tasks.job_moves import JobMover
from toolfleet_tasks.job_records import Found, JobRecords
from toolfleet_tasks.job_rules import passes
from toolfleet_tasks.job_steps import JobSteps
from toolfleet_tasks.kicks import kick
from toolfleet_tasks.line import Line
from toolfleet_tasks.wakes import DueWake, Wakes
from toolfleet_tasks.worker_sessions import worker_session

log = structlog.get_logger(__name__)

_BATCH = 100  # jobs at once
_MOST_LEASE_SECONDS = 30.0  # a tick ends before; its jobs are others' then
_KICK_DELAY_SECONDS = 0.02  # ends of jobs come in crowds
_SHARE = 0.75  # of its time, for what a tick waits for


class WorkerJobs:
    """As `ports.JobKeeper`, for the workers of `app`."""

    def __init__(self, app: FleetApp) -> None:
        self._app = app
        self._settings = app.settings
        # As soon as a message of a dead worker comes back, its jobs do.
        self._lease_seconds = min(_MOST_LEASE_SECONDS, max(app.settings.lease_seconds / 2, 1.0))
        self._benches: WeakKeyDictionary[lines.Lines, _Bench] = WeakKeyDictionary()

    async def resume(self, *, seconds: float) -> None:
        """As `ports.JobKeeper`."""
        seconds = min(seconds, self._lease_seconds) * _SHARE
        try:
            async with self._bench() as bench:
                await asyncio.gather(self._tick(bench, seconds), self._deliver(bench, seconds))
        except Exception:  # the next tick will do; a defect must not end up in Celery's store for results
            log.exception("jobs_not_resumed")

    async def evaluate(self, job_id: str, *, seconds: float) -> None:
        """As `ports.JobKeeper`."""
        try:
            async with asyncio.timeout(min(seconds, self._lease_seconds)), self._bench() as bench:
                job = await bench.records.look(job_id)
                if job is not None:
                    await bench.mover.evaluate(job)
        except Exception as exc:  # noqa: BLE001 - the sweep will find it
            log.warning("job_not_evaluated", job_id=job_id, error=str(exc) or repr(exc))

    async def _tick(self, bench: "_Bench", seconds: float) -> None:
        loop, is_full, is_shared = asyncio.get_running_loop(), True, False
        last_claim_at = loop.time() + seconds / 2  # a batch must not be left half done
        async with asyncio.timeout(seconds):
            while is_full and loop.time() < last_claim_at:
                jobs, is_full = await bench.records.claim(count=_BATCH, lease_seconds=self._lease_seconds)
                if is_full and not is_shared:  # another worker may help
                    is_shared = True
                    await self._kick()
                await asyncio.gather(*(self._go_on(bench, job) for job in jobs))

    async def _go_on(self, bench: "_Bench", job: Found) -> None:
        try:
            await bench.mover.go_on(job)
        except Exception as exc:  # noqa: BLE001 - one job's fault is not the others'; it is due again after its lease
            log.warning("job_not_moved", job_id=job.spec.job_id, error=str(exc) or repr(exc))

    async def _deliver(self, bench: "_Bench", seconds: float) -> None:
        await bench.wakes.deliver_due(publish=bench.publish, seconds=seconds)

    async def _kick(self) -> None:
        await kick(self._app, self._settings, lines.current(), RESUME)

    async def _kick_later(self, bench: "_Bench") -> None:
        await asyncio.sleep(_KICK_DELAY_SECONDS)
        bench.is_kicked = False
        await self._kick()

    @asynccontextmanager
    async def _bench(self) -> AsyncGenerator["_Bench"]:
        """Of this worker's loop; under a pool without a loop, for this use."""
        here, settings = lines.current(), self._settings
        if here is not None:
            bench = self._benches.get(here)
            if bench is None:
                line = here.to(str(settings.redis_url), master=settings.sentinel_master)
                bench = self._benches[here] = _Bench(line, self, here)
                here.settle.append(bench.wakes.aclose)
            yield bench
            return
        line = Line(connection_factory(str(settings.redis_url), master=settings.sentinel_master), name="jobs")
        line.start()
        try:
            async with AsyncExitStack() as stack:
                bench = _Bench(line, self, None, stack)
                try:
                    yield bench
                finally:
                    await bench.wakes.aclose(seconds=settings.core_timeout_seconds)
                    if bench.is_kicked:
                        await self._kick()
        finally:
            await line.aclose()


class _Bench:
    """What one loop has for jobs. `stack` closes what is opened for a single use."""

    def __init__(
        self, line: Line, owner: WorkerJobs, here: lines.Lines | None, stack: AsyncExitStack | None = None
    ) -> None:
        settings = owner._settings  # noqa: SLF001 - a part of it
        self.is_kicked = False
        self.records = JobRecords(line, settings)
        self.wakes = Wakes(line, settings)
        self._owner, self._here, self._settings, self._stack = owner, here, settings, stack
        self.mover = JobMover(
            self.records,
            self._steps,
            settings,
            lease_seconds=owner._lease_seconds,  # noqa: SLF001 - as above
            on_end=self._kick_soon,
        )

    async def publish(self, wake: DueWake) -> str | None:
        """As `wakes.Publish`: a call that a job's end makes. Raises where a later try may do."""
        try:
            then = wire.load(ThenCall, self.records.unsealed(json.loads(wake.body)["call"]))
        except (MessageRefused, ValueError, KeyError, TypeError, AttributeError) as exc:
            return f"The call cannot be read: {str(exc).partition(chr(10))[0]}"
        if then.call_id != wake.wake_id:
            return "The call is that of another job's end."
        steps = await self._steps()
        ready = steps.ready(then.spec, then.call, then.call_id)
        if isinstance(ready, ToolResult):
            return ready.error
        refusal = await steps.publish(ready)
        if refusal is None:
            return None
        if passes(refusal):
            raise _PutOff(refusal.error)
        return steps.unpublished(ready, refusal).error

    async def _steps(self) -> JobSteps:
        opening = worker_session(self._settings)
        if self._stack is None:
            async with opening as session:  # the loop's, which stays open
                return session.steps
        if self._own is None:
            self._own = (await self._stack.enter_async_context(opening)).steps
        return self._own

    _own: JobSteps | None = None

    def _kick_soon(self) -> None:
        """News are delivered at once, and not with beat's next tick."""
        if self.is_kicked:
            return
        self.is_kicked = True
        if self._here is not None:  # else it is done before the bench is left
            self._here.later(self._owner._kick_later(self))  # noqa: SLF001 - as above


class _PutOff(Exception):
    """A call is refused for now."""
