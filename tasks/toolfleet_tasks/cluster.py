"""Refuses Redis Cluster: Celery's transport works on several keys at once, which may lie on different nodes there."""

from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from toolfleet_registry.errors import SettingsError

_SECONDS = 5.0


async def refuse_cluster(redis: AsyncRedis) -> None:
    """Raise `SettingsError` if this is a node of a cluster. Fails open: who gets no answer will hear of that soon."""
    try:
        info = await redis.info("cluster")
    except (RedisError, OSError):
        return
    _judge(info)


def refuse_cluster_at(url: str) -> None:
    """The same for synchronous programs."""
    once = Retry(NoBackoff(), 0)
    with Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS, retry=once) as redis:
        try:
            info = redis.info("cluster")
        except (RedisError, OSError):
            return
    _judge(info)


def _judge(info: Mapping[str, Any]) -> None:
    if info.get("cluster_enabled"):
        raise SettingsError(
            "Redis Cluster cannot carry Celery's queues: use a standalone Redis, or RabbitMQ as broker."
        )
