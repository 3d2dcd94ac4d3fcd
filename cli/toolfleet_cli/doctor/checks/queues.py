"""Finds queues without workers, workers without queues, queues that operators have paused, and those whose calls wait too long."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from toolfleet_cli.console.output import age
from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, remark, warning
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.background.job_service import worker_job_service
from toolfleet_tasks.operations.fleet_status import FleetStatus, QueueStatus, read_status
from toolfleet_tasks.presence.consumers import workers_by_queue
from toolfleet_tasks.queue_states import LANE_PREFIX, QueueStates, QueueStateStore
from toolfleet_tasks.queues import CONTROL, IDLE, lane_of, queue_of

_OLD_SECONDS = 30.0
_NAMED = 5


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """Goes by what workers note of themselves each second."""

    name: str = "queues"
    asks_redis: bool = True
    seconds: float = 15.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings, known = patient.settings, KnownModules(patient.settings)
        async with patient.redis() as redis:
            known.take((await ModuleDirectory(redis, settings).read()).entries)
            states = await QueueStateStore(redis, settings).read()
        status, served = await read_status(settings), await workers_by_queue(settings)
        async with worker_job_service(settings) as service:
            unnamed = await service.hooks.without_job_id()
        findings = [
            *_unserved(sorted(known.names - known.ending), known.settings, served),
            *_idle(served),
            *(one for queue in status.queues if queue.state != "paused" for one in _late(queue)),
            *_held_up(states, known),
            *_left_behind(status),
            *_replayable(unnamed),
        ]
        facts = {
            "lanes": [asdict(lane) for lane in status.lanes],
            "queues": [asdict(queue) for queue in status.queues],
            "workers_by_queue": dict(served),
            "held": status.held,
            "jobs": status.jobs,
            "jobs_with_unnamed_hooks": len(unnamed),
            "overdue_jobs": status.overdue_jobs,
            "wakes": status.wakes,
            "dead_letters": status.dead_letters,
            "dead_wakes": status.dead_wakes,
            "dead_webhooks": status.dead_webhooks,
            "quarantined": status.quarantined,
        }
        return CheckResult(tuple(findings), facts)


def _unserved(modules: list[str], settings: Settings, served: Counter[str]) -> Iterable[Diagnosis]:
    if not served[CONTROL]:
        yield error(
            f"No worker takes from {CONTROL}.",
            "Manifests are not read and jobs do not go on: those are tasks of the fast lane.",
            "toolfleet worker --lane fast",
        )
    for lane in ("fast", "slow"):
        found = [name for name in modules if lane_of(name, settings) == lane and not served[queue_of(name)]]
        if not found:
            continue
        names = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
        text, mend = f"No worker takes calls of {names} (lane {lane}).", f"toolfleet worker --lane {lane}"
        if lane in settings.scale_from_zero_lanes:
            yield remark(text, "The lane starts workers when calls come.", mend)
        else:
            yield error(text, f"Such calls are refused after {settings.unserved_seconds:g} s.", mend)


def _idle(served: Counter[str]) -> Iterable[Diagnosis]:
    if served[IDLE]:
        yield warning(
            f"{served[IDLE]} workers have no queue: their lane has no module.",
            "They use memory and do nothing.",
            "End them, or name modules: TOOLFLEET_MODULE_SERVICES, TOOLFLEET_SLOW_MODULES, `toolfleet modules add`.",
        )


def _held_up(states: QueueStates, known: KnownModules) -> Iterable[Diagnosis]:
    """Yield the paused and draining queues, which operators may have forgotten."""
    for name, state in sorted(states.stored.items()):
        lane = name.removeprefix(LANE_PREFIX)
        subject = f"The queue {queue_of(name)}" if lane == name else f"Each queue of the lane {lane}"
        if lane == name and name not in known.names | known.served | known.ending:
            subject += ", whose module is not there,"
        yield warning(
            f"{subject} has been {state.state} for {age(max(fleet_clock.now() - state.since, 0.0))}.",
            "Its calls wait, and end as `expired` at their deadlines."
            if state.state == "paused"
            else "New calls are refused as `busy`; those that wait are run.",
            f"toolfleet queues resume {name}; `toolfleet queues list` says who has done it, and why.",
        )


def _late(queue: QueueStatus) -> Iterable[Diagnosis]:
    if queue.waiting and not queue.workers:
        yield error(
            f"{queue.waiting} messages wait in {queue.queue}, and no worker takes from it.",
            "They end as `expired`, unless a worker comes.",
            f"toolfleet worker --lane {queue.lane}",
        )
    elif (queue.oldest_seconds or 0) > _OLD_SECONDS:
        yield warning(
            f"{queue.waiting} messages wait in {queue.queue}, the oldest for {age(queue.oldest_seconds)}.",
            "Whoever waits for them may have given up by the time they begin.",
            f"Start more workers of lane {queue.lane}, or give the module more processes: `toolfleet status` shows which is short.",
        )


def _replayable(job_ids: list[str]) -> Iterable[Diagnosis]:
    if job_ids:
        names = ", ".join(job_ids[:_NAMED])
        yield warning(
            f"The hooks of {len(job_ids)} jobs take requests that do not name the job: {names}.",
            "A request that is signed for one of them ends another one with the same secret.",
            "Make such jobs with `requires_job_id` in `hook`, have the outside system send `job_id`, and give each a secret of its own.",
        )


def _left_behind(status: FleetStatus) -> Iterable[Diagnosis]:
    if status.overdue_jobs:
        yield warning(
            f"{status.overdue_jobs} jobs are overdue.",
            "Nobody polls them, and whoever waits for them hears of their end late.",
            "See that one beat runs: `toolfleet beat`.",
        )
    if status.quarantined:
        yield warning(
            f"{status.quarantined} messages lie in quarantine.",
            "Nobody could read them; their calls have ended as not executed.",
            "toolfleet redis-cli lrange toolfleet:quarantine 0 9, then del it",
        )
    if status.dead_letters:
        text = f"{status.dead_letters} calls are dead letters."
        yield remark(text, "What became of them is not known: a person has to look.", "toolfleet dead-letters list")
    if dead := status.dead_wakes + status.dead_webhooks:
        yield remark(
            f"{dead} wake-ups or webhooks were given up.", "Nobody has accepted them.", "toolfleet dead-letters list"
        )
