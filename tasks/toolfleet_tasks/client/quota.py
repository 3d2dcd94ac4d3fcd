"""Reads what a user has left of their limits, as Redis knows it now."""

import asyncio
from collections.abc import Sequence

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.decisions import note
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.policy.limits import Remaining
from toolfleet_tasks.limits import Limit, refused_by, remaining
from toolfleet_tasks.lua.limits import JUDGE, READ
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.redis.script_runner import run

_PATIENCE_SECONDS = 5.0  # a look takes a millisecond, or Redis is away
_POLL_SECONDS = 2.0  # before a gate, which may take as long: an agent's user waits meanwhile
_CHUNK = 200  # limits a script, so that none holds Redis up


async def read_remaining(connection: PipelinedConnection, limits: Sequence[Limit]) -> Remaining:
    """Return the use of these limits. Raises `FleetUnavailable` when Redis does not answer within 5 s."""
    now, uses = 0, list[int]()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for start in range(0, max(len(limits), 1), _CHUNK):
                chunk = limits[start : start + _CHUNK]
                terms = [limit.args for limit in chunk]
                command = READ.command(limits=[limit.key for limit in chunk], terms=terms)
                now, *used = await connection.execute(*command)
                uses += used
    except (OSError, ResponseError) as exc:  # TimeoutError is an OSError
        raise FleetUnavailable(f"Redis does not say what is left: {str(exc) or 'no answer'}") from exc
    return remaining(limits, [now, *uses])


async def refusal_now(
    connection: PipelinedConnection, tool_name: str, limits: Sequence[Limit], *, intent: str | None, seconds: float
) -> ToolResult | None:
    """Return the result of a call that its limits would refuse now: before an agent's gate is asked. Takes nothing.

    `intent` is the key of its idempotency record, under which it may join another call. Fails open, after `seconds` at
    the latest: admission judges again, and counts it.
    """
    if not limits:
        return None
    parameters = JUDGE.parameters(
        intent=intent or limits[0].key,
        limits=[limit.key for limit in limits],
        has_intent=int(bool(intent)),
        terms=[limit.args for limit in limits],
    )
    try:
        async with asyncio.timeout(min(seconds, _POLL_SECONDS)):
            answer = await run(connection, JUDGE, parameters)
    except (OSError, ResponseError):
        return None
    if not isinstance(answer, list):
        return None
    note("limits", "denied")
    return refused_by(tool_name, limits, answer[1:])
