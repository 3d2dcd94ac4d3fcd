"""The fleet for programs without an event loop: the same methods, on a loop of their own in a thread."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.formats import tools_to_openai_format
from toolfleet_registry.jobs import Completion, Job, Poll, Schedule
from toolfleet_registry.progress import Progress
from toolfleet_registry.tags import ToolContext
from toolfleet_registry.terms import Remaining
from toolfleet_tasks import forks
from toolfleet_tasks.call_status import CallStatus
from toolfleet_tasks.dead import Kept
from toolfleet_tasks.handle import CallHandle
from toolfleet_tasks.sync_wakes import SyncWakeMethods

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from toolfleet_tasks.client import ToolFleet

T = TypeVar("T")


class SyncToolFleet(SyncWakeMethods):
    """`ToolFleet` with plain methods: `with ToolFleet.sync() as fleet: fleet.call(call, caller)`.

    Safe from many threads, and in processes that are forked while it is open; a handle stays with its process.
    """

    def __init__(self, make: "Callable[[], ToolFleet]") -> None:
        self._fleet = make()
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._is_open = False
        forks.tell(self)

    def __enter__(self) -> Self:
        self._is_open = True
        try:
            self._wait(self._fleet.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._wait(self._fleet.__aexit__(*exc_info))
        finally:
            self._stop()

    def forked(self) -> None:
        """As `forks.Forked`: threads stay with the parent; the child's first call starts its own."""
        forks.leave_behind(self._thread)
        self._lock, self._thread = threading.Lock(), None

    def tools(self, caller: Caller) -> list[ToolDefinition]:
        """As `ToolFleet.tools`."""
        return self._wait(self._fleet.tools(caller))

    def search(self, text: str, caller: Caller, *, tags: Sequence[str] = (), limit: int = 20) -> list[ToolDefinition]:
        """As `ToolFleet.search`."""
        return self._wait(self._fleet.search(text, caller, tags=tags, limit=limit))

    @staticmethod
    def tools_to_openai_format(tools: Iterable[ToolDefinition]) -> list[dict[str, Any]]:
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

    def call(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: ToolContext | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """As `ToolFleet.call`."""
        return self._wait(self._fleet.call(call, caller, conversation=conversation, context=context, timeout=timeout))

    def call_many(
        self,
        calls: Sequence[ToolCall],
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
    ) -> list[ToolResult]:
        """As `ToolFleet.call_many`."""
        return self._wait(self._fleet.call_many(calls, caller, conversation=conversation, timeout=timeout))

    def submit(
        self,
        call: ToolCall,
        caller: Caller,
        *,
        conversation: Conversation | None = None,
        context: ToolContext | None = None,
        timeout: float | None = None,
    ) -> "SyncCallHandle":
        """As `ToolFleet.submit`."""
        handle = self._wait(
            self._fleet.submit(call, caller, conversation=conversation, context=context, timeout=timeout)
        )
        return SyncCallHandle(handle, self._wait)

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
        schedule: Schedule | None = None,
    ) -> Job:
        """As `ToolFleet.start_job`."""
        asked = start, poll, on_complete, conversation, deadline
        return self._wait(self._fleet.start_job(*asked, caller=caller, name=name, message=message, schedule=schedule))

    def job(self, job_id: str, caller: Caller) -> Job | None:
        """As `ToolFleet.job`."""
        return self._wait(self._fleet.job(job_id, caller))

    def jobs(self, caller: Caller, *, ended: bool = True, limit: int = 100) -> list[Job]:
        """As `ToolFleet.jobs`."""
        return self._wait(self._fleet.jobs(caller, ended=ended, limit=limit))

    def cancel_job(self, job_id: str, caller: Caller) -> Job | None:
        """As `ToolFleet.cancel_job`."""
        return self._wait(self._fleet.cancel_job(job_id, caller))

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

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._running_loop()
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: the call is taken back
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if not self._is_open:
                raise RuntimeError(
                    "This fleet is not open: use it inside `with`, as in `with ToolFleet.sync() as fleet:`."
                )
            if self._thread is None:
                self._thread = _LoopThread()
                self._thread.start()
            return self._thread.loop

    def _stop(self) -> None:
        with self._lock:
            self._is_open = False
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


class _LoopThread(threading.Thread):
    """A thread that runs an event loop until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="toolfleet", daemon=True)
        self.loop = asyncio.new_event_loop()

    def run(self) -> None:
        self.loop.run_forever()

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join()
        self.loop.close()


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
