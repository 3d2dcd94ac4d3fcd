"""The tools of `claude_code`: tasks are started, looked at and cancelled; the work itself goes on in the background."""

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from modules.claude_code.settings import ClaudeCodeSettings
from modules.claude_code.task import Task, TaskRefused, TaskState, TaskStatus
from modules.claude_code.task_store import TaskStore
from modules.kept_commands import LogPart
from toolfleet.sdk import Context, ToolError

_OPEN = frozenset({"queued", "running"})
_END_SECONDS = 3.0  # beyond the agent's grace, until the answer to a cancellation says `running`
_POLL_SECONDS = 0.05

TaskId = Annotated[str, Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class StartedTask:
    """What `run_task` returns."""

    task_id: str
    workspace: str
    status: TaskState


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task among others."""

    task_id: str
    status: TaskState
    created_at: str
    workspace: str


class ClaudeCode:
    """Tasks belong to the user who started them, and do not exist for anybody else."""

    def __init__(self, store: TaskStore, settings: ClaudeCodeSettings) -> None:
        self._store = store
        self._settings = settings

    async def run_task(
        self,
        prompt: Annotated[str, Field(min_length=1, max_length=50_000)],
        user_id: str,
        context: Context,
        timeout_seconds: Annotated[float, Field(gt=0)] | None = None,
    ) -> StartedTask:
        """Start a coding agent on a task, in a new workspace.

        Args:
            prompt: What the agent is to build, with all it needs to know: it cannot ask.
            timeout_seconds: After how long the agent is ended; the module has a default and a maximum.
        """
        wanted = self._settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        if wanted > self._settings.max_timeout_seconds:
            raise ToolError(f"A task may take {self._settings.max_timeout_seconds:g} s at most.", effect_state="none")
        try:
            task = await asyncio.to_thread(
                self._store.create, user_id, prompt, timeout_seconds=wanted, call_id=context.call_id
            )
        except TaskRefused as exc:
            raise ToolError(str(exc), effect_state="none") from exc
        status = await asyncio.to_thread(self._store.status, task, details=False)
        return StartedTask(task_id=task.task_id, workspace=status.workspace, status=status.status)

    async def task_status(self, task_id: TaskId, user_id: str) -> TaskStatus:
        """Say where a task stands: queued, running, completed, failed, cancelled or timed_out; with its last lines and files.

        Args:
            task_id: The task, as claude_code.run_task named it.
        """
        return await asyncio.to_thread(self._store.status, self._task(task_id, user_id))

    async def task_logs(
        self,
        task_id: TaskId,
        user_id: str,
        offset: int = 0,
        limit: Annotated[int, Field(ge=1, le=50_000)] = 10_000,
    ) -> LogPart:
        """Read what the agent of a task has printed. Of a long log the beginning and the latest are kept.

        Args:
            task_id: The task, as claude_code.run_task named it.
            offset: The byte to begin at, such as the next_offset of the last answer; negative: from the end.
            limit: How many bytes at most.
        """
        return await asyncio.to_thread(self._store.command(self._task(task_id, user_id)).log, offset, limit)

    async def cancel_task(self, task_id: TaskId, user_id: str) -> TaskStatus:
        """End a task, with all that its agent has started. One that has ended stays as it is.

        Args:
            task_id: The task, as claude_code.run_task named it.
        """
        task = self._task(task_id, user_id)
        status = await asyncio.to_thread(self._store.status, task, details=False)
        if status.status in _OPEN:
            await asyncio.to_thread(self._store.command(task).cancel)
            give_up_at = time.monotonic() + self._settings.grace_seconds + _END_SECONDS
            while status.status in _OPEN and time.monotonic() < give_up_at:
                await asyncio.sleep(_POLL_SECONDS)
                status = await asyncio.to_thread(self._store.status, task, details=False)
        return await asyncio.to_thread(self._store.status, task)

    async def list_tasks(self, user_id: str, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> list[ListedTask]:
        """List your tasks, the newest first.

        Args:
            limit: How many at most.
        """
        return await asyncio.to_thread(self._list, user_id, limit)

    def _list(self, user_id: str, limit: int) -> list[ListedTask]:
        newest = self._store.tasks(user_id=user_id)[::-1][:limit]
        found = [self._store.status(task, details=False) for task in newest]
        return [
            ListedTask(task_id=it.task_id, status=it.status, created_at=it.created_at, workspace=it.workspace)
            for it in found
        ]

    def _task(self, task_id: str, user_id: str) -> Task:
        task = self._store.get(task_id, user_id)
        if task is None:
            raise ToolError(
                f"You have no task {task_id!r}; list the tasks to see which there are.", effect_state="none"
            )
        return task
