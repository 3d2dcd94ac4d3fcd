"""A call that is under way, in the hands of a program without an event loop."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.progress import Progress
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.calls.status import CallStatus


class SyncCallHandle:
    """`CallHandle` with plain methods."""

    def __init__(self, handle: CallHandle, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.id = handle.id
        self._handle = handle
        self._wait = wait

    def result(self, timeout: float | None = None) -> ToolResult:
        """As `CallHandle.result`."""
        result: ToolResult = self._wait(self._handle.result(timeout))
        return result

    def cancel(self) -> None:
        """As `CallHandle.cancel`."""
        self._wait(self._handle.cancel())

    def status(self) -> CallStatus:
        """As `CallHandle.status`."""
        status: CallStatus = self._wait(self._handle.status())
        return status

    def progress(self) -> Generator[Progress]:
        """As `CallHandle.progress`: `for progress in handle.progress()` ends with the call."""
        steps = self._handle.progress()
        try:
            while (progress := self._wait(_next(steps))) is not None:
                yield progress
        finally:
            self._wait(steps.aclose())


async def _next(steps: AsyncGenerator[Progress]) -> Progress | None:
    return await anext(steps, None)
