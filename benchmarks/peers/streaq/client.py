"""streaq's client. It is told of a result."""

from typing import Any

from benchmarks.peers.streaq.worker import execute, worker
from benchmarks.work import Call

_SECONDS = 60


class Client:
    """`enqueue`, then `result`."""

    async def open(self) -> None:
        """Connect."""
        await worker.__aenter__()

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and await its result."""
        task = await execute.enqueue(call.tool_name, call.arguments, call.user_id)
        return (await task.result(_SECONDS)).result

    async def publish(self, call: Call) -> None:
        """Publish a call."""
        await execute.enqueue(call.tool_name, call.arguments, call.user_id)


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
