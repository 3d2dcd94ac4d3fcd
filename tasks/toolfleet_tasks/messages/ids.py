"""Names jobs, their tasks and their steps: a step's call has the same id, however often it is published."""

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from toolfleet_registry.contracts import Message
from toolfleet_registry.settings import LONGEST_PROGRAM_SECONDS, Settings
from toolfleet_registry.system import randomness

if TYPE_CHECKING:
    from toolfleet_registry.contracts.jobs import JobSpec

RESUME = "toolfleet.resume"
"""The task that does what is due."""

EVALUATE = "toolfleet.evaluate_job"
"""The task that looks at a job whose call has ended."""

RESUME_PROGRAMS = "toolfleet.resume_programs"
"""The task that goes on with one program, or with all that are due. Its argument: a program's id, or '' for those."""

_DIGEST_LENGTH = 16  # characters: no user gains by a request that looks like another one of their own
_WAKE_KEY = "wake:"
_WAKE_KEY_MARGIN_SECONDS = 3600
_PROGRAM, _PROGRAM_KEY = "program-", "program:"


def job_id_for(user_id: str | None, idempotency_key: str | None) -> str:
    """Return a new id, or the one that this user's key stands for."""
    if not idempotency_key:
        return randomness.uuid4().hex
    named = json.dumps([user_id or "", idempotency_key])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def request_digest(spec: "JobSpec") -> str:
    """Return a digest of the request under one key: calls, and when they recur.

    Times differ when a request is repeated.
    """
    calls = [
        _as_requested(one) if isinstance(one, Message) else one for one in (spec.start, spec.poll, *spec.on_complete)
    ]
    when = None if spec.schedule is None else [spec.schedule.cron, spec.schedule.timezone]
    if when is not None and spec.schedule is not None and spec.schedule.max_runs is not None:
        when = [*when, str(spec.schedule.max_runs)]
    hook = [] if spec.hook is None else [spec.hook.model_dump(mode="json")]
    request = json.dumps([calls, when, *hook], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()[:_DIGEST_LENGTH]


def _as_requested(call: Message) -> dict[str, Any]:
    """Return all that a call says; its version only if it names one, since agents of earlier releases know none."""
    said = call.model_dump(mode="json")
    if said.get("tool_version") is None:
        said.pop("tool_version", None)
    return said


def workflow_mark(workflow_id: str | None) -> str:
    """Return the mark of a workflow in its jobs' records, by which they are found; '' for none."""
    return "" if workflow_id is None else hashlib.sha256(workflow_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def step_call_id(job_id: str, step: int) -> str:
    """Return the id of a job's step: 0 is its start, n its n-th poll."""
    return f"{job_id}.{step}"


def is_later_step(call_id: str, job_id: str | None) -> bool:
    """Return whether a call is one of a job that has started."""
    return job_id is not None and call_id != step_call_id(job_id, 0)


def then_call_id(job_id: str, number: int, *, round_step: int | None = None) -> str:
    """Return the id of a call that a job's end makes: the `number`-th of `on_complete`; of a recurring job that of one round's end."""
    return f"{wake_root(job_id, round_step)}.then.{number}"


def wake_key(wake_id: str, name: str) -> str:
    """Return the idempotency key of a call that follows from a wake-up, as `name` says: see `kept_seconds`."""
    return f"{_WAKE_KEY}{wake_id}:{name}"


def is_wake_key(idempotency_key: str | None) -> bool:
    """Return whether a key is one of `wake_key`."""
    return idempotency_key is not None and idempotency_key.startswith(_WAKE_KEY)


def kept_seconds(idempotency_key: str | None, settings: Settings, job_id: str | None = None) -> int:
    """Return how long the end of a call under this key is kept: a wake-up's call as long as the wake-up may come again, a program's as long as the program may wait.

    `job_id`: of the call, which no caller can choose: a key alone makes no program's call.
    """
    usual = math.ceil(settings.result_ttl_seconds)
    if job_id is not None and is_program(job_id):
        return max(usual, LONGEST_PROGRAM_SECONDS + _WAKE_KEY_MARGIN_SECONDS)
    if not is_wake_key(idempotency_key):
        return usual
    return max(usual, math.ceil(settings.wake_give_up_seconds) + _WAKE_KEY_MARGIN_SECONDS)


def program_id_of(call_id: str) -> str:
    """Return the id of the program that a call of `programs.run` is to make."""
    return _PROGRAM + call_id


def outer_call_of(program_id: str) -> str:
    """Return the id of the call that has made a program."""
    return program_id.removeprefix(_PROGRAM)


def is_program(job_id: str) -> bool:
    """Return whether the job of a call is a program. A job that a program has made has an id that begins with the program's."""
    return job_id.startswith(_PROGRAM) and "." not in job_id


def program_of(call_id: str) -> str | None:
    """Return the id of the program that a call of this id belongs to; `None` if it is no program's."""
    job_id, _, _ = call_id.rpartition(".")
    return job_id if is_program(job_id) else None


def program_key(program_id: str, number: int) -> str:
    """Return the idempotency key of a program's call: see `kept_seconds`."""
    return f"{_PROGRAM_KEY}{program_id}:{number}"


def wake_root(job_id: str, round_step: int | None = None) -> str:
    """Return the beginning of the ids of a job's end events."""
    return job_id if round_step is None else f"{job_id}.{round_step}"
