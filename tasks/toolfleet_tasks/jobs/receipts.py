"""Drops the text of a result that a job has had: it has gone on from there, and asks for it no more."""

from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.jobs.positions import JobPosition
from toolfleet_tasks.lua.storage import HAD
from toolfleet_tasks.messages.ids import step_call_id
from toolfleet_tasks.redis.connection import Part, PipelinedConnection


def confirm(connection: PipelinedConnection, receipt: tuple[Part, ...]) -> None:
    """Send it, and wait for nothing: if it gets lost, the text expires."""
    connection.send(*receipt).add_done_callback(lambda reply: reply.cancelled() or reply.exception())


def receipt_of(spec: JobSpec, place: JobPosition, keys: Keys) -> tuple[Part, ...]:
    """The command of Redis that confirms it. A result under a user's key stays: it may be asked for again."""
    step = step_call_id(spec.job_id, place.step)
    call_id = place.call_id or step
    is_keyed = place.step == 0 and spec.start is not None and bool(spec.start.idempotency_key)
    reader = step if place.call_id is not None or is_keyed else ""
    names = (keys.call(call_id), keys.result(call_id), keys.readers(call_id), keys.stored(spec.user_id))
    return HAD.command(results=[names], had=[(call_id, "", reader)])
