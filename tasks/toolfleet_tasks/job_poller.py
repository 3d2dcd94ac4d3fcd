"""Keeps jobs going in a worker: claims due jobs, reads jobs with an ended call, and delivers wake-ups."""

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import FleetUnavailable, MessageRefused
from toolfleet_registry.spans import Tracing
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.aio import end
from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.approvals.feed import ApprovalNotices
from toolfleet_tasks.approvals.records import ApprovalRecords
from toolfleet_tasks.approvals.service import settle_due
from toolfleet_tasks.client.session import worker_session
from toolfleet_tasks.jobs.completion import ThenCall
from toolfleet_tasks.jobs.engine import JobEngine, JobSteps
from toolfleet_tasks.jobs.records import Found, JobRecords
from toolfleet_tasks.jobs.state_machine import is_unknown, passes
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import RESUME
from toolfleet_tasks.messages.json_text import NewerMessage
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.tracing import woken
from toolfleet_tasks.transport.redis_publisher import control_soon
from toolfleet_tasks.wakeups.outbox import Around, DueWake, NotYet, WakeupOutbox
from toolfleet_tasks.wakeups.sender import DeliveryAnswer

log = get_logger(__name__)

_BATCH = 100  # jobs at once
_MOST_LEASE_SECONDS = 30.0  # a tick ends before; its jobs are others' then
_EVENTS_DELAY_SECONDS = 0.02  # ends of jobs come in crowds
_PART = 0.75  # of its time, for what a tick waits for
_CALL_SECONDS = 1.0  # between two calls for help
_CROWDED_SECONDS = 0.25  # for modules to work off what waits for them, before jobs add to it
_BROKER_SECONDS = 30.0  # for a call in another Redis than the ledger's to begin, before it is published again

_TRACE_SECONDS = 1.0  # to find out where a job was made in a trace: its wake-up does not depend on it


class WorkerJobs:
    """The work of jobs in the workers of `app`."""

    def __init__(self, app: FleetApp) -> None:
        self._app = app
        self._settings = app.settings
        # As soon as a message of a dead worker comes back, its jobs do.
        self._lease_seconds = min(_MOST_LEASE_SECONDS, max(app.settings.lease_seconds / 2, 1.0))

    async def resume(self, *, seconds: float) -> None:
        """Do due work of all jobs, or a part of it, and deliver their end events. Returns within about `seconds`."""
        seconds = min(seconds, self._lease_seconds) * _PART
        try:
            bench = worker_runtime.here().part(self._make_bench)
            bench.send_webhooks(seconds)
            approvals = bench.settle_approvals(seconds), bench.tell_of_approvals(seconds)
            await asyncio.gather(self._tick_alone(bench, seconds), self._deliver(bench, seconds), *approvals)
        except Exception:  # the next tick will do; a defect must not end up in Celery's store for results
            log.exception("jobs_not_resumed")

    async def evaluate(self, job_id: str, *, seconds: float) -> None:
        """Process a job after its call has ended. Returns within about `seconds`."""
        try:
            bench = worker_runtime.here().part(self._make_bench)
            async with asyncio.timeout(min(seconds, self._lease_seconds)):
                job = await bench.records.read(job_id)
                if job is not None:
                    await bench.mover.evaluate(job)
        except Exception as exc:  # noqa: BLE001 - the sweep will find it
            log.warning("job_not_evaluated", job_id=job_id, error=str(exc) or repr(exc))

    async def _tick_alone(self, bench: "_Bench", seconds: float) -> None:
        """Run one tick at a time; ticks that come meanwhile are one more, after it."""
        bench.wanted.set()
        if bench.is_ticking:
            return
        bench.is_ticking = True
        give_up_at = asyncio.get_running_loop().time() + seconds
        try:
            while bench.wanted.is_set() and (left := give_up_at - asyncio.get_running_loop().time()) > seconds / 2:
                bench.wanted.clear()
                await self._tick(bench, left)
        finally:
            bench.is_ticking = False
        if bench.wanted.is_set():
            await self._kick()

    async def _tick(self, bench: "_Bench", seconds: float) -> None:
        """Do due work, also work that falls due before the next tick, on time; in a long interval, for its first half."""
        clock = asyncio.get_running_loop().time
        last_claim_at = clock() + seconds / 2  # a batch must not be left half done
        next_tick_at = min(clock() + self._settings.jobs_interval_seconds, last_claim_at)
        async with asyncio.timeout(seconds):
            await self._work_off(bench, last_claim_at)
            while (rest := await bench.records.rest()) is not None and clock() + rest < next_tick_at:
                if bench.mover.is_crowded:
                    await asyncio.sleep(max(rest, _CROWDED_SECONDS))
                elif await _is_set(bench.wanted, within=rest):  # something is due that was not there before
                    return
                await self._work_off(bench, last_claim_at)

    async def _work_off(self, bench: "_Bench", last_claim_at: float) -> None:
        """Process due jobs, until there are none or a module has enough to do."""
        clock, is_full = asyncio.get_running_loop().time, True
        bench.mover.is_crowded = False
        while is_full and not bench.mover.is_crowded and clock() < last_claim_at:
            jobs, is_full = await bench.records.claim(count=_BATCH, lease_seconds=self._lease_seconds)
            if is_full and clock() >= bench.called_at + _CALL_SECONDS:  # another worker may help
                bench.called_at = clock()
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
        await control_soon(self._app, RESUME)

    async def _deliver_soon(self, bench: "_Bench") -> None:
        await asyncio.sleep(_EVENTS_DELAY_SECONDS)
        bench.is_kicked = False
        try:
            await self._deliver(bench, self._lease_seconds * _PART)
        except Exception:  # as above
            log.exception("wakes_not_delivered")

    def _make_bench(self, here: worker_runtime.WorkerRuntime) -> "_Bench":
        connection = here.to(str(self._settings.redis_url), master=self._settings.sentinel_master)
        bench = _Bench(connection, self, here)
        here.settle.append(bench.aclose)
        return bench


class _Bench:
    """The parts that one worker has for jobs."""

    def __init__(self, connection: PipelinedConnection, owner: WorkerJobs, here: worker_runtime.WorkerRuntime) -> None:
        settings = owner._settings  # noqa: SLF001 - a part of it
        self.is_kicked = self.is_ticking = False
        self.wanted = asyncio.Event()
        self.called_at = float("-inf")
        self._sending = set[asyncio.Task[int]]()
        self.records = JobRecords(connection, settings)
        around = _around_tries(owner._app.tracing, self.records)  # noqa: SLF001 - as above
        self.wakes = WakeupOutbox(connection, settings, around=around)
        self._approvals = ApprovalRecords(connection, settings)
        self._notices = ApprovalNotices(connection, self._approvals, settings)
        self._owner, self._here, self._settings = owner, here, settings
        self.mover = JobEngine(
            self.records,
            self._steps,
            settings,
            lease_seconds=owner._lease_seconds,  # noqa: SLF001 - as above
            on_end=self._kick_soon,
        )

    def send_webhooks(self, seconds: float) -> None:
        """Send events of the registry, in the background: a slow receiver takes no slot of a call."""
        sending = self._here.loop.create_task(self.wakes.send_webhooks(seconds=seconds), name="toolfleet-webhooks")
        self._sending.add(sending)
        sending.add_done_callback(self._sent)

    async def settle_approvals(self, seconds: float) -> None:
        """Settle due approvals. One request to Redis if there are none."""
        try:
            async with asyncio.timeout(seconds):
                if await self._approvals.due_count():
                    async with worker_session(self._settings) as session:
                        await settle_due(session.approvals, seconds=seconds * _PART, lease_seconds=seconds)
        except (OSError, ResponseError, FleetUnavailable) as exc:  # the next tick will do
            log.warning("approvals_not_settled", error=str(exc) or repr(exc))

    async def tell_of_approvals(self, seconds: float) -> None:
        """Put what has happened to approvals into the outbox of webhooks, if there are any."""
        try:
            async with asyncio.timeout(seconds):
                await self._notices.put()
        except (OSError, ResponseError, FleetUnavailable) as exc:  # as above
            log.warning("approval_webhooks_not_fed", error=str(exc) or repr(exc))

    async def aclose(self) -> None:
        """Cancel the running work."""
        await end(self._sending)
        await self.wakes.aclose()

    def _sent(self, sending: asyncio.Task[int]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled() and (exc := sending.exception()) is not None:  # a defect; the next tick will do
            log.error("webhooks_not_sent", error=repr(exc))

    async def publish(self, wake: DueWake) -> str | None:
        """Implements `outbox.Publish`: make a call of a job's end. Raises if a later attempt may succeed."""
        try:
            then = json_text.load(ThenCall, self.records.unsealed(json.loads(wake.body)["call"]))
        except (
            MessageRefused,
            json_text.NewerMessage,
        ) as exc:  # for good only if no other process of the fleet can read it, either
            raise NotYet(str(exc)) from exc
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            return f"The call cannot be read: {str(exc).partition(chr(10))[0]}"
        if then.call_id != wake.wake_id:
            return "The call is that of another job's end."
        steps = await self._steps()
        call = await steps.prepare(then.spec, then.call, then.call_id)
        if isinstance(call, ToolResult):
            return self._put_off(call) or call.error
        answer = await steps.publish(call, then.spec)
        if isinstance(answer, ToolResult):
            return self._put_off(answer) or steps.unpublished(call, answer).error
        if answer is None and self._settings.broker != self._settings.redis_url:
            text = "It was published, and the broker may lose it: it is looked for until it has begun."
            raise NotYet(text, seconds=_BROKER_SECONDS)
        return None

    @staticmethod
    def _put_off(refusal: ToolResult) -> None:
        if passes(refusal) or is_unknown(refusal):
            raise NotYet(refusal.error)

    async def _steps(self) -> JobSteps:
        async with worker_session(self._settings) as session:
            return session.steps

    def _kick_soon(self) -> None:
        """Deliver wake-ups soon, without waiting for beat's next tick."""
        if self.is_kicked:
            return
        self.is_kicked = True
        self._here.later(self._owner._deliver_soon(self))  # noqa: SLF001 - as above


async def _is_set(event: asyncio.Event, *, within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            return await event.wait()
    except TimeoutError:
        return False


def _around_tries(tracing: Tracing | None, records: JobRecords) -> Around | None:
    """Return the outbox's wrapper around each attempt; `None` without tracing."""
    if tracing is None:
        return None

    async def around(job_id: str, url: str, post: Coroutine[Any, Any, DeliveryAnswer]) -> DeliveryAnswer:
        job = None
        with contextlib.suppress(OSError, ResponseError, MessageRefused, NewerMessage, TimeoutError):
            async with asyncio.timeout(_TRACE_SECONDS):
                job = await records.get(job_id)
        return await woken(tracing, None if job is None else job.spec, url, post, lambda answer: answer.accepted)

    return around
