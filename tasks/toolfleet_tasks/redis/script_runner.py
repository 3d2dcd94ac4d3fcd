"""Runs a Lua script by its digest, and sends its text where Redis has not seen it."""

from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.redis.refusals import is_one_of


async def run(connection: PipelinedConnection, script: Script, parameters: Parameters, *, reads: bool = False) -> Any:
    """Run the script and return its result, over any connection; one that only `reads` is sent once, as by `PipelinedConnection.read`.

    Raises `ResponseError`, `RedisConnectionLost` and `RedisConnectionClosed`.
    """
    ask = connection.read if reads else connection.execute
    try:
        return await ask("EVALSHA", script.digest, *parameters)
    except ResponseError as exc:
        if not is_unknown_script(exc):
            raise
    return await ask("EVAL", script.text, *parameters)


def is_unknown_script(error: ResponseError) -> bool:
    """Return whether Redis has not seen the script that was named, and so has done nothing."""
    return is_one_of(("NOSCRIPT",), error)
