"""huey's client. It is told of a result."""

from typing import Any

from benchmarks.peers.huey.worker import execute
from benchmarks.work import Call
from huey.api import Result

_SECONDS = 60


class Client:
    """Calling the task, then `get`."""

    def publish(self, call: Call) -> Result:
        """Publish a call."""
        return execute(call.tool_name, call.arguments, call.user_id)

    def result(self, handle: Result) -> dict[str, Any]:
        """Wait for its result."""
        return handle.get(blocking=True, timeout=_SECONDS)


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
