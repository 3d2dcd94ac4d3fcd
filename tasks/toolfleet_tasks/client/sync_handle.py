"""Holds a call that is under way, for a program without an event loop."""

from collections.abc import Generator

from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.client.sync_face import LoopRunner, SyncFace, blocking


class SyncCallHandle(SyncFace[CallHandle]):
    """`CallHandle` with plain methods."""

    def __init__(self, handle: CallHandle, runner: LoopRunner) -> None:
        super().__init__(handle, runner)
        self.id = handle.id

    result = blocking(CallHandle.result)
    cancel = blocking(CallHandle.cancel)
    status = blocking(CallHandle.status)
    next_stop = blocking(CallHandle.next_stop)
    answer = blocking(CallHandle.answer)

    def progress(self) -> Generator[Progress]:
        """Yield progress as `CallHandle.progress` does: `for progress in handle.progress()` ends with the call."""
        return self._each(self._face.progress())

    def log(self) -> Generator[LogMessage]:
        """Yield messages as `CallHandle.log` does: `for message in handle.log()` ends with the call."""
        return self._each(self._face.log())
