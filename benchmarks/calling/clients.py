"""What a producer needs of each system's client; `benchmarks/peers/<name>/client.py` has `connect(variant)`."""

from typing import Any, Protocol, runtime_checkable

from benchmarks.work import Call


@runtime_checkable
class AsyncClient(Protocol):
    """A client for an event loop."""

    async def open(self) -> None:
        """Connect."""

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and await its result."""
        ...

    async def publish(self, call: Call) -> None:
        """Publish a call and forget it."""


class BlockingClient(Protocol):
    """A client without one: it publishes many calls first and waits for them afterwards, in the same order."""

    def publish(self, call: Call) -> Any:
        """Publish a call; returns what `result` takes."""

    def result(self, handle: Any) -> dict[str, Any]:
        """Wait for a call's result."""
        ...
