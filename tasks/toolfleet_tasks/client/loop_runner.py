"""The fleet for programs without an event loop: the same methods, on a loop of their own in a thread."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.jobs import Completion, Job, Poll, Schedule
from toolfleet_registry.contracts.progress import Progress
from toolfleet_registry.formats import Converted, tools_to_openai_format
from toolfleet_registry.policy.limits import Remaining
from toolfleet_registry.tags.tags import ToolContext
from toolfleet_tasks.aio import fork_safety
from toolfleet_tasks.client.progress_listener import OnProgress, told
from toolfleet_tasks.client.sync_handle import SyncCallHandle
from toolfleet_tasks.client.sync_registry_events import SyncRegistryMethods
from toolfleet_tasks.client.sync_wakeups import SyncWakeMethods
from toolfleet_tasks.ledger.dead_letters import Kept

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from toolfleet_tasks.client.fleet import ToolFleet

T = TypeVar("T")

_NOT_OPEN = "This fleet is not open: use it inside `with`, as in `with ToolFleet.sync() as fleet:`, or between `open()` and `close()`."
_STOP_SECONDS = 5  # for what was begun while the fleet was left


class SyncToolFleet(SyncWakeMethods, SyncRegistryMethods):
    """`ToolFleet` with plain methods: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`.

    Safe from many threads, and in processes that are forked while it is open; a handle stays with its process.
    """

    def __init__(self, make: "Callable[[], ToolFleet]") -> None:
        self._fleet, self._lock = make(), threading.Lock()
        self._thread: _LoopThread | None = None
        self._is_open = False
        fork_safety.tell(self)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the fleet without `with`, in a shell or where a framework starts; `close` it at the end. Raises what `with` does."""
        if self._is_open:
            return self
        self._is_open = True
        try:
            self._wait(self._fleet.open())
        except BaseException:
            self._stop()
            raise
        return self

    def close(self) -> None:
        """Close what `open` has opened. Calls that are under way end with a result that says so; a closed fleet stays closed."""
        if not self._is_open:
            return
        try:
            self._wait(self._fleet.close())
        finally:
            self._stop()

    def forked(self) -> None:
        """As `fork_safety.Forked`: threads stay with the parent; the child's first call starts its own."""
        fork_safety.leave_behind(self._thread)
        self._lock, self._thread = threading.Lock(), None

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """As `ToolFleet.tools`."""
        return self._wait(self._fleet.tools(caller))

    def search(self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20) -> list[ToolDefinition]:
        """As `ToolFleet.search`."""
        return self._wait(self._fleet.search(text, caller, tags=tags, limit=limit))

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> Converted:
        """As `ToolFleet.tools_to_openai_format`."""
        return tools_to_openai_format(tools)

    def statuses(self) -> dict[str, ModuleStatus]:
        """As `ToolFleet.statuses`."""
        return self._wait(self._fleet.statuses())

    def refresh(self) -> dict[str, ModuleStatus]:
        """As `ToolFleet.refresh`."""
        return self._wait(self._fleet.refresh())

    def remaining(self, caller: Caller) -> Remaining:
        """As `ToolFleet.remaining`."""
        return self._wait(self._fleet.remaining(caller))

    def call(  # noqa: PLR0913 - as there
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: ToolContext | None = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """As `ToolFleet.call`; `on_progress` is called in this thread."""
        said: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        hear = None if on_progress is None else said.put
        run = partial(self._fleet.call, conversation=conversation, context=context, timeout=timeout)
        work = run(call, caller, waits_for_worker=waits_for_worker, on_progress=hear)
        if on_progress is None:
            return self._wait(work)
        return self._wait(work, lambda future: _listen(future, said, on_progress))

    def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
    ) -> list[ToolResult]:
        """As `ToolFleet.call_many`."""
        run = partial(self._fleet.call_many, conversation=conversation, timeout=timeout)
        return self._wait(run(calls, caller, waits_for_worker=waits_for_worker))

    def submit(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: ToolContext | None = None,
        timeout: float | None = None,
        waits_for_worker: bool = False,
    ) -> SyncCallHandle:
        """As `ToolFleet.submit`."""
        submit = partial(self._fleet.submit, conversation=conversation, context=context, timeout=timeout)
        return SyncCallHandle(self._wait(submit(call, caller, waits_for_worker=waits_for_worker)), self._wait)

    def signature(
        self, call: ToolCall, caller: Caller, *, timeout: float | None = None, conversation: Conversation | None = None
    ) -> "Signature":
        """As `ToolFleet.signature`."""
        return self._wait(self._fleet.signature(call, caller, timeout=timeout, conversation=conversation))

    def result_of(self, link: "Signature | AsyncResult | str", *, timeout: float | None = None) -> ToolResult | None:
        """As `ToolFleet.result_of`."""
        return self._wait(self._fleet.result_of(link, timeout=timeout))

    def start_job(  # noqa: PLR0913 - as there
        self,
        start: ToolCall | None = None,
        poll: Poll | None = None,
        on_complete: Completion | Sequence[Completion] = "resume_conversation",
        conversation: Conversation | None = None,
        deadline: float | None = None,
        *,
        caller: Caller,
        name: str = "",
        message: str | None = None,
        on_failure_message: str | None = None,
        schedule: Schedule | None = None,
        workflow_id: str | None = None,
    ) -> Job:
        """As `ToolFleet.start_job`."""
        asked = start, poll, on_complete, conversation, deadline
        told: dict[str, Any] = {"name": name, "message": message, "on_failure_message": on_failure_message}
        told |= {"schedule": schedule, "workflow_id": workflow_id}
        return self._wait(self._fleet.start_job(*asked, caller=caller, **told))

    def job(self, job_id: str, caller: Caller) -> Job | None:
        """As `ToolFleet.job`."""
        return self._wait(self._fleet.job(job_id, caller))

    def jobs(
        self, caller: Caller, *, ended: bool = True, limit: int = 100, workflow_id: str | None = None
    ) -> list[Job]:
        """As `ToolFleet.jobs`."""
        return self._wait(self._fleet.jobs(caller, ended=ended, limit=limit, workflow_id=workflow_id))

    def cancel_job(self, job_id: str, caller: Caller) -> Job | None:
        """As `ToolFleet.cancel_job`."""
        return self._wait(self._fleet.cancel_job(job_id, caller))

    def cancel_workflow(self, workflow_id: str, caller: Caller) -> int:
        """As `ToolFleet.cancel_workflow`."""
        return self._wait(self._fleet.cancel_workflow(workflow_id, caller))

    def dead_letters(self, limit: int = 50, offset: int = 0) -> list[Kept]:
        """As `ToolFleet.dead_letters`."""
        return self._wait(self._fleet.dead_letters(limit, offset))

    def dead_letter(self, call_id: str) -> Kept:
        """As `ToolFleet.dead_letter`."""
        return self._wait(self._fleet.dead_letter(call_id))

    def drop_dead_letters(self, *call_ids: str) -> tuple[str, ...]:
        """As `ToolFleet.drop_dead_letters`."""
        return self._wait(self._fleet.drop_dead_letters(*call_ids))

    def drop_all_dead_letters(self) -> int:
        """As `ToolFleet.drop_all_dead_letters`."""
        return self._wait(self._fleet.drop_all_dead_letters())

    def replay(
        self,
        call_id: str,
        caller: Caller | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """As `ToolFleet.replay`."""
        return self._wait(self._fleet.replay(call_id, caller, arguments=arguments, timeout=timeout))

    def _wait(self, work: Coroutine[Any, Any, T], meanwhile: "Callable[[Future[T]], None] | None" = None) -> T:
        try:
            future = self._begun(work)
        except RuntimeError:
            work.close()
            raise
        try:
            if meanwhile is not None:
                meanwhile(future)
            return future.result()
        except CancelledError as exc:
            if self._is_open:
                raise
            raise RuntimeError(_NOT_OPEN) from exc
        except BaseException:  # Ctrl-C too: the call is taken back
            future.cancel()
            raise

    def _begun(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:  # until it is on the loop: what comes after the loop's end would wait for ever
            if not self._is_open:
                raise RuntimeError(_NOT_OPEN)
            if self._thread is None:
                self._thread = _LoopThread()
                self._thread.start()
            return self._thread.begin(work)

    def _stop(self) -> None:
        with self._lock:
            self._is_open = False
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


def _listen(future: "Future[Any]", said: "queue.SimpleQueue[Progress | None]", on_progress: OnProgress) -> None:
    """Until the future is done, tell each step that was said, and the last ones before that."""
    future.add_done_callback(lambda _: said.put(None))
    while (step := said.get()) is not None:
        told(step, on_progress)


class _LoopThread(threading.Thread):
    """A thread that runs an event loop until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="toolfleet", daemon=True)
        self.loop = asyncio.new_event_loop()
        self._begun = set[Future[Any]]()  # what other threads wait for

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run it on the loop. Its future ends with it, and at the latest when `stop` returns."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return future

    def run(self) -> None:
        self.loop.run_forever()
        if left := asyncio.all_tasks(self.loop):  # begun at the last moment
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=_STOP_SECONDS))
        # Of a task that ended in the loop's very last turn, nobody was told; others do not let themselves be cancelled.
        self.loop.run_until_complete(asyncio.sleep(0))
        for future in list(self._begun):
            future.cancel()

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join()
        self.loop.close()
