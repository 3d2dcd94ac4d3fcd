"""huey, which tells of results: by default a caller polls."""

from typing import Any

from benchmarks.posting import BlockingPoster
from benchmarks.work import REDIS_URL
from huey import RedisHuey
from redis import ConnectionPool

# redis-py allows 100 connections by default, and a hundred idle threads each wait on one.
pool = ConnectionPool.from_url(REDIS_URL, max_connections=1000, socket_timeout=None)
huey = RedisHuey("bench", connection_pool=pool, notify_result=True)
post = BlockingPoster()


@huey.task()
def execute(tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return post(tool_name, arguments, user_id)
