"""What a user has left of their limits, as Redis knows it now."""

import asyncio
from collections.abc import Sequence

from redis.exceptions import ResponseError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.terms import Remaining
from toolfleet_tasks import limits_scripts
from toolfleet_tasks.limits import Limit, remaining
from toolfleet_tasks.line import Line

_PATIENCE_SECONDS = 5.0  # a look takes a millisecond, or Redis is away
_CHUNK = 200  # limits a script, so that none holds Redis up


async def look_at(line: Line, limits: Sequence[Limit]) -> Remaining:
    """What is used of these limits. Raises `FleetUnavailable` when Redis does not answer within 5 s."""
    now, uses = 0, list[int]()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for start in range(0, max(len(limits), 1), _CHUNK):
                chunk = limits[start : start + _CHUNK]
                keys = [limit.key for limit in chunk]
                args = [part for limit in chunk for part in limit.args]
                now, *used = await line.execute("EVAL", limits_scripts.LOOK, len(keys), *keys, *args)
                uses += used
    except (OSError, ResponseError) as exc:  # TimeoutError is an OSError
        raise FleetUnavailable(f"Redis does not say what is left: {str(exc) or 'no answer'}") from exc
    return remaining(limits, [now, *uses])
