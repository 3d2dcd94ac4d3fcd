"""saq."""

from typing import Any

from benchmarks.posting import AsyncPoster
from benchmarks.work import CONCURRENCY, REDIS_URL
from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

# redis-py allows 100 connections by default, and a hundred idle slots each wait on one.
redis = Redis.from_url(REDIS_URL, max_connections=2000, socket_timeout=None)
queue = RedisQueue(redis, max_concurrent_ops=200)
post = AsyncPoster()


async def execute(_context: Any, *, tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return await post(tool_name, arguments, user_id)


settings = {"queue": queue, "functions": [execute], "concurrency": CONCURRENCY}
