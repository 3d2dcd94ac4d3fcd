"""dramatiq's client. It waits on a list for the result."""

from typing import Any

from benchmarks.peers.dramatiq.worker import execute
from benchmarks.work import Call
from dramatiq import Message

_MILLISECONDS = 60_000


class Client:
    """`send`, then `get_result`."""

    def publish(self, call: Call) -> Message:
        """Publish a call."""
        return execute.send(call.tool_name, call.arguments, call.user_id)

    def result(self, handle: Message) -> dict[str, Any]:
        """Wait for its result."""
        return handle.get_result(block=True, timeout=_MILLISECONDS)


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
