"""Offers the fleet to programs without an event loop: `ToolFleet.sync()`."""

import functools
from typing import Self

from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.tags.tags import ToolContext
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.loop_runner import LoopRunner
from toolfleet_tasks.client.namespaces.approvals import SyncFleetApprovals
from toolfleet_tasks.client.namespaces.canvas import SyncFleetCanvas
from toolfleet_tasks.client.namespaces.dead_letters import SyncFleetDeadLetters
from toolfleet_tasks.client.namespaces.jobs import SyncFleetJobs
from toolfleet_tasks.client.namespaces.modules import SyncFleetModules
from toolfleet_tasks.client.namespaces.wakeups import SyncFleetWakeups
from toolfleet_tasks.client.sync_face import SyncFace, blocking, blocking_with_progress
from toolfleet_tasks.client.sync_handle import SyncCallHandle


class SyncToolFleet(SyncFace[ToolFleet]):
    """`ToolFleet` with plain methods: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`.

    Safe from many threads, and in processes that are forked while it is open; a handle stays with its process.
    """

    def __init__(self, fleet: ToolFleet) -> None:
        super().__init__(fleet, runner := LoopRunner())
        self.jobs = SyncFleetJobs(fleet.jobs, runner)
        self.approvals = SyncFleetApprovals(fleet.approvals, runner)
        self.dead_letters = SyncFleetDeadLetters(fleet.dead_letters, runner)
        self.wakeups = SyncFleetWakeups(fleet.wakeups, runner)
        self.modules = SyncFleetModules(fleet.modules, runner)
        self.canvas = SyncFleetCanvas(fleet.canvas, runner)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the fleet without `with`, in a shell or where a framework starts; `close` it at the end. Raises what `with` does."""
        if not self._runner.is_started:
            self._runner.start()
            try:
                self._runner.wait(self._face.open())
            except BaseException:
                self._runner.stop()
                raise
        return self

    def close(self) -> None:
        """Close what `open` has opened. Calls that are under way end with a result that says so; a closed fleet stays closed."""
        if self._runner.is_started:
            try:
                self._runner.wait(self._face.close())
            finally:
                self._runner.stop()

    tools = blocking(ToolFleet.tools)
    search = blocking(ToolFleet.search)
    tools_to_openai_format = staticmethod(ToolFleet.tools_to_openai_format)
    remaining = blocking(ToolFleet.remaining)
    call = blocking_with_progress(ToolFleet.call)
    call_many = blocking(ToolFleet.call_many)

    def submit(  # noqa: PLR0913 - as `ToolFleet.submit`
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: ToolContext | None = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
        waits_for_turn: bool = False,
    ) -> SyncCallHandle:
        """As `ToolFleet.submit`."""
        submit = functools.partial(self._face.submit, conversation=conversation, context=context, timeout=timeout)
        work = submit(call, caller, waits_for_worker=waits_for_worker, waits_for_turn=waits_for_turn)
        return SyncCallHandle(self._runner.wait(work), self._runner)
