"""dramatiq on Redis."""

from typing import Any

import dramatiq
from benchmarks.posting import BlockingPoster
from benchmarks.work import REDIS_URL
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from redis import ConnectionPool, Redis

# redis-py allows 100 connections by default, and gives up a wait of more than 5 s.
redis = Redis(connection_pool=ConnectionPool.from_url(REDIS_URL, max_connections=1000, socket_timeout=None))
broker = RedisBroker(client=redis)
broker.add_middleware(Results(backend=RedisBackend(client=redis)))
dramatiq.set_broker(broker)
post = BlockingPoster()


@dramatiq.actor(store_results=True, max_retries=0)
def execute(tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return post(tool_name, arguments, user_id)
