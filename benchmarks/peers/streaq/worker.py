"""streaq. Needs Redis 7 (functions)."""

import json
from typing import Any

from benchmarks.posting import AsyncPoster
from benchmarks.work import CONCURRENCY, REDIS_URL
from streaq import Worker

worker = Worker(
    redis_url=REDIS_URL,
    concurrency=CONCURRENCY,
    # coredis allows 64 by default, and a result takes a connection to wait for: 200 waiting calls would stand still.
    redis_kwargs={"max_connections": 2000},
    serializer=json.dumps,
    deserializer=json.loads,
)
post = AsyncPoster()


@worker.task
async def execute(tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return await post(tool_name, arguments, user_id)


if __name__ == "__main__":
    worker.run_sync()
