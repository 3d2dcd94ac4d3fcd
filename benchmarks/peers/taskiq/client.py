"""taskiq's client. It polls for a result: every 10 ms here, every 200 ms by default."""

from typing import Any

from benchmarks.peers.taskiq.worker import broker, execute
from benchmarks.work import Call

_POLL_SECONDS = 0.01
_SECONDS = 60


class Client:
    """`kiq`, then `wait_result`."""

    async def open(self) -> None:
        """Connect."""
        await broker.startup()

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and await its result."""
        task = await execute.kiq(call.tool_name, call.arguments, call.user_id)
        return (await task.wait_result(check_interval=_POLL_SECONDS, timeout=_SECONDS)).return_value

    async def publish(self, call: Call) -> None:
        """Publish a call."""
        await execute.kiq(call.tool_name, call.arguments, call.user_id)


def connect(_variant: str) -> Client:
    """There is one kind."""
    return Client()
