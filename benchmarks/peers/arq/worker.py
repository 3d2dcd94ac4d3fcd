"""arq: a worker that looks for jobs every 10 ms, every 500 ms by default."""

import json
from typing import Any
from urllib.parse import urlsplit

from arq.connections import RedisSettings
from arq.worker import run_worker
from benchmarks.posting import AsyncPoster
from benchmarks.work import CONCURRENCY, REDIS_URL

POLL_SECONDS = 0.01
SETTINGS = RedisSettings(host="127.0.0.1", port=urlsplit(REDIS_URL).port)
post = AsyncPoster()


def serialize(job: Any) -> bytes:
    """JSON, as everywhere here; pickle by default."""
    return json.dumps(job).encode()


async def execute(_context: Any, tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return await post(tool_name, arguments, user_id)


class WorkerSettings:
    """What arq's worker reads."""

    functions = (execute,)
    redis_settings = SETTINGS
    max_jobs = CONCURRENCY
    poll_delay = POLL_SECONDS
    job_serializer = staticmethod(serialize)
    job_deserializer = staticmethod(json.loads)


if __name__ == "__main__":
    run_worker(WorkerSettings)
