"""What jobs, their tasks and their steps are called: a step's call has the same id, however often it is published."""

import hashlib
import json
import uuid

RESUME = "toolfleet.resume"
"""The task that does what is due."""

EVALUATE = "toolfleet.evaluate_job"
"""The task that looks at a job whose call has ended."""


def job_id_for(user_id: str | None, idempotency_key: str | None) -> str:
    """A new id; or the one that this user's key stands for."""
    if not idempotency_key:
        return uuid.uuid4().hex
    named = json.dumps([user_id or "", idempotency_key])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def step_call_id(job_id: str, step: int) -> str:
    """The call of a job's step: 0 is its start, n its n-th poll."""
    return f"{job_id}.{step}"


def then_call_id(job_id: str, number: int, *, round_step: int | None = None) -> str:
    """The call that a job's end makes: the `number`-th of `on_complete`; of a recurring job that of one round's end."""
    return f"{wake_root(job_id, round_step)}.then.{number}"


def wake_root(job_id: str, round_step: int | None = None) -> str:
    """What the ids of the news of a job's end begin with."""
    return job_id if round_step is None else f"{job_id}.{round_step}"
