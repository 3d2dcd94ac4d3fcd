"""taskiq on a Redis stream."""

from typing import Any

from benchmarks.posting import AsyncPoster
from benchmarks.work import REDIS_URL
from taskiq.serializers import JSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

# From "0" on, so that a worker finds what was queued before it started.
broker = RedisStreamBroker(REDIS_URL, consumer_id="0").with_result_backend(
    RedisAsyncResultBackend(REDIS_URL, result_ex_time=3600, serializer=JSONSerializer())
)
post = AsyncPoster()


@broker.task(task_name="execute")
async def execute(tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return await post(tool_name, arguments, user_id)
