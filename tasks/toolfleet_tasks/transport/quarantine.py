"""Keeps a message that this worker may not run, for an operator to look at; its call ends otherwise."""

import json
from dataclasses import dataclass

from redis.exceptions import RedisError

from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import fleet_clock

QUARANTINED_AT_MOST = 1000
KEPT_CHARACTERS = 2**18  # of each; Redis must hold all of them

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The place of messages that no worker can run: a list, newest first, and a counter."""

    messages: str
    counter: str


async def quarantine(settings: Settings, queue: str, reason: str, message: str) -> None:
    """Quarantine a message, at the broker's Redis, or at that of the results. Raises nothing."""
    url = settings.broker if settings.broker is not None and is_redis_url(settings.broker) else settings.redis_url
    kept = kept_message(queue, reason, message)
    try:
        async with async_client(str(url), master=settings.sentinel_master) as redis, redis.pipeline() as commands:
            commands.lpush(settings.keys.quarantine, kept)
            commands.ltrim(settings.keys.quarantine, 0, QUARANTINED_AT_MOST - 1)
            commands.incr(settings.keys.quarantined)
            await commands.execute()
    except (RedisError, OSError) as exc:
        log.warning("message_not_quarantined", queue=queue, error=str(exc))


def kept_message(queue: str, reason: str, message: str) -> str:
    """Return a message's record, as JSON: when, where, why, and its text."""
    return json.dumps({"at": fleet_clock.now(), "queue": queue, "reason": reason, "message": message[:KEPT_CHARACTERS]})
