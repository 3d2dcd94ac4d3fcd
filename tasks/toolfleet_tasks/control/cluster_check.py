"""Refuses Redis Cluster: Celery's transport works on several keys at once, which may lie on different nodes there."""

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import SettingsError


async def refuse_cluster(redis: Redis) -> None:
    """Raise `SettingsError` if this is a node of a cluster. Fails open: who gets no answer will hear of that soon."""
    try:
        info = await redis.info("cluster")
    except (RedisError, OSError):
        return
    if info.get("cluster_enabled"):
        raise SettingsError(
            "Redis Cluster cannot carry Celery's queues: use a standalone Redis, or RabbitMQ as broker."
        )
