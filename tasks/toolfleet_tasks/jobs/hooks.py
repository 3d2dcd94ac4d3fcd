"""Ends jobs that wait for a signed request of an outside system, in the place of polls. Others have verified who sent it."""

from collections.abc import Callable
from dataclasses import dataclass

from toolfleet_registry.contracts.jobs import ENDED, HookSpec, Job
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.completion import end_events_of, end_note, shown
from toolfleet_tasks.jobs.positions import EndedRound
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.redis.answers import answered

log = get_logger(__name__)

_MOST_READ = 1_000
_TRIES = 20  # to end a job that moves meanwhile


@dataclass(frozen=True, slots=True)
class HookEnd:
    """A job that has ended, and whether it was this request that ended it, then or when it came before."""

    job: Job
    is_its_end: bool


class JobHooks:
    """The hooks of jobs.

    Every method raises `FleetUnavailable` when Redis does not answer within 5 s. `on_end` is called when there are
    events.
    """

    def __init__(self, records: JobRecords, settings: Settings, *, on_end: Callable[[], object]) -> None:
        self._records = records
        self._has_core = settings.core_url is not None
        self._on_end = on_end

    async def of_job(self, job_id: str) -> HookSpec | None:
        """Return what requests must be that end a job; `None` for one without a hook, or that there is not (any more)."""
        job = await answered(self._records.get(job_id))
        return None if job is None else job.spec.hook

    async def without_job_id(self) -> list[str]:
        """Return the ids of jobs whose hooks take requests that do not name the job, among 1,000 that have not ended."""
        found = await answered(self._records.of_all(ended=False, limit=_MOST_READ))
        hooks = {job.spec.job_id: job.spec.hook for job in found}
        return [job_id for job_id, hook in hooks.items() if hook is not None and not hook.requires_job_id]

    async def end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        """End a job as the request with the id `delivery` says, and send its events once; `None` if it has no hook.

        One that has ended stays as it is. One whose deadline has passed has timed out, regardless of the request.
        """
        return await answered(self._end(job_id, delivery, said))

    async def _end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        for _ in range(_TRIES):
            job = await self._records.get(job_id)
            if job is None or job.spec.hook is None:
                return None
            if job.place.state in ENDED:
                is_its_end = job.end is not None and job.end.delivery == delivery
                return HookEnd(shown(job.spec, job.place, job.end), is_its_end)
            live = await self._records.read(job_id)  # knows also what else of its workflow has failed
            if live is not None and (ended := await self._ended(live, delivery, said)) is not None:
                return ended
        raise FleetUnavailable(f"The job {job_id!r} moves all the time: try again.")

    async def _ended(self, job: Found, delivery: str, said: EndedRound) -> HookEnd | None:
        """`None`: others have moved it."""
        spec, place, now = job.spec, job.place, job.now
        if place.state in ENDED:
            return None
        if job.stopped_by is not None:
            move = state_machine.stopped(place, job.stopped_by)
        else:
            move = state_machine.after_hook(spec, place, said, now=now)
        is_its_end = move.ended is said
        end = end_note(spec, move, now)
        if end is not None and is_its_end:
            end = end.model_copy(update={"delivery": delivery})
        events = end_events_of(spec, move, now, has_core=self._has_core, seal=self._records.sealed)
        if await self._records.move(job, JobChange(move.place, end=end, events=events)) is None:
            return None
        log.info("job_ended", job_id=spec.job_id, state=move.place.state, delivery=delivery)
        self._on_end()
        return HookEnd(shown(spec, move.place, end), is_its_end)
