"""Sends an attempt to one of a module's processes, and where nothing could be sent to the next: each once, within the same attempt."""

from collections.abc import Awaitable, Callable

from toolfleet_registry.contracts.outcomes import Attempt, Health
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time.lease import Lease
from toolfleet_workers.executors.replicas import Replicas, ReplicaState, id_in

log = get_logger(__name__)

SendTo = Callable[[ReplicaState, int], Awaitable[Attempt]]
"""Sends the attempt to this process, with how many others are left. `Attempt.unreached` is `AWAY` only where that process has
surely not begun it."""


async def send_to_one(replicas: Replicas, lease: Lease, send: SendTo) -> Attempt | None:
    """One attempt, at the process that the lease names if that is still there; `None` if there is none at all.

    Another process is noted on the lease before anything is sent to it. Raises `LeaseOver`, and what `send` raises.
    """
    tried = set[str]()
    state, attempt = replicas.noted(lease.replica) or replicas.choose(), None
    while state is not None:
        tried.add(state.replica.id)
        if id_in(lease.replica) != state.replica.id:
            await lease.move(state.note)
        others = sum(id_ not in tried for id_ in replicas.states)
        attempt = await _sent(state, send, others)
        if attempt.unreached is not Health.AWAY:
            return attempt
        state = replicas.choose(tried)
    return attempt


async def _sent(state: ReplicaState, send: SendTo, others: int) -> Attempt:
    state.in_flight += 1
    try:
        attempt = await send(state, others)
    finally:
        state.in_flight -= 1
    if attempt.unreached is Health.AWAY and state.missed():
        log.warning("replica_ejected", replica=state.replica.id, seconds=state.pause)
    return attempt
