"""rq's client. It waits on a stream for the result."""

from typing import Any

from benchmarks.work import REDIS_URL, Call
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.results import Result

_SECONDS = 60


class Client:
    """`enqueue`, then `latest_result`."""

    def __init__(self) -> None:
        self._queue = Queue("tools", connection=Redis.from_url(REDIS_URL, socket_timeout=None))

    def publish(self, call: Call) -> Job:
        """Publish a call."""
        return self._queue.enqueue(
            "benchmarks.peers.rq.tasks.execute", args=(call.tool_name, call.arguments, call.user_id)
        )

    def result(self, handle: Job) -> dict[str, Any]:
        """Wait for its result."""
        result = handle.latest_result(timeout=_SECONDS)
        if result is None or result.type is not Result.Type.SUCCESSFUL:
            raise RuntimeError(f"no result of rq: {result}")
        return result.return_value


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
