"""Writes what must not be lost: until Redis has taken it, however long that takes."""

import asyncio

from redis.exceptions import ResponseError

from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.redis.connection import Part, PipelinedConnection
from toolfleet_tasks.redis.protocol import is_one_of

log = get_logger(__name__)

# Redis closes the connection on a value that it finds too large, often before its answer has come. No server can be
# made to refuse one of a mebibyte; a larger one that is lost so often with its connection is taken for the cause.
_HEAVY, _LOSSES = 2**20, 3
_FORBIDDEN = ("NOPERM", "can't run this command")
_REPAIR_SECONDS = 5.0  # between attempts while the user of Redis lacks a right: an operator will notice and repair it


async def write_durably(connection: PipelinedConnection, command: tuple[Part, ...], *, size: int) -> object:
    """Send a command that writes a value of so many bytes until Redis has answered it; it may run twice.

    Raises `ResponseError` or `RedisConnectionLost` where Redis refuses it for good, and `RedisConnectionClosed`.
    """
    while True:
        try:
            return await connection.execute(*command, losses=_LOSSES if size > _HEAVY else 0)
        except ResponseError as exc:
            await _repaired(exc)


async def run_durably(
    connection: PipelinedConnection, script: Script, parameters: Parameters, *, size: int = 0
) -> object:
    """Write as `written` does, with a script."""
    while True:
        try:  # not through `written`: this is what a worker does most
            losses = _LOSSES if size > _HEAVY else 0
            return await connection.execute("EVALSHA", script.digest, *parameters, losses=losses)
        except ResponseError as exc:
            if is_one_of(("NOSCRIPT",), exc):
                return await write_durably(connection, ("EVAL", script.text, *parameters), size=size)
            await _repaired(exc)


async def _repaired(error: ResponseError) -> None:
    """Wait until it may work again. Raises the error if Redis will never accept it."""
    if not any(text in str(error) for text in _FORBIDDEN):
        raise error
    log.warning("result_forbidden", error=str(error))
    await asyncio.sleep(_REPAIR_SECONDS)
