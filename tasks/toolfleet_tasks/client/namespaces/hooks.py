"""Passes on what ends a job from outside: `fleet.hooks`."""

from typing import Any

from toolfleet_registry.contracts import ErrorCode
from toolfleet_registry.contracts.jobs import HookSpec
from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.jobs.hooks import HookEnd
from toolfleet_tasks.jobs.positions import EndedRound

_FAILED: ErrorCode = "module_error"  # as when a poll's result says that the work has failed


class FleetHooks:
    """The hooks of jobs, for gateways, which verify the sender. Raises `FleetUnavailable`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def of_job(self, job_id: str) -> HookSpec | None:
        """Return the hook of any user's job; `None` for one without a hook, or that there is not."""
        return await (await self._sessions.opened()).jobs.hooks.of_job(job_id)

    async def complete(self, job_id: str, delivery: str, result: Any) -> HookEnd | None:
        """End a job as completed, once; `delivery` is the request's id. `None`: there is no such job with a hook."""
        return await self._end(job_id, delivery, EndedRound("completed", result))

    async def fail(self, job_id: str, delivery: str, error: str) -> HookEnd | None:
        """End the job as `complete` does, as failed: `error` is the outside system's message."""
        text = f"The job has failed: its hook says: {error}"
        return await self._end(job_id, delivery, EndedRound("failed", error=text, error_code=_FAILED))

    async def _end(self, job_id: str, delivery: str, said: EndedRound) -> HookEnd | None:
        return await (await self._sessions.opened()).jobs.hooks.end(job_id, delivery, said)
