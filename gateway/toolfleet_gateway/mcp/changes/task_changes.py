"""Follows the tasks that one client listens to, and says when one of them is elsewhere."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.changes.change_queue import ChangeQueue, ViewChange
from toolfleet_gateway.mcp.task_methods import TaskMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.calls.begun_handle import BegunHandle

log = get_logger(__name__)

_MOST_TASKS = 100  # of one stream
_LONGEST_ID = 256
_POLL_SECONDS = 1.0  # between two looks at a task that has not ended: its end is heard of at once
_CHANGING = ("status", "statusMessage", "inputRequests")
_ENDED = frozenset({"completed", "failed", "cancelled"})


class TaskChanges:
    """The tasks of one stream, by their ids; `states` is where each is, as `tasks/get` says it."""

    def __init__(self, tasks: TaskMethods, view: McpView, *, takes_forms: bool) -> None:
        self._tasks = tasks
        self._view, self._takes_forms = view, takes_forms
        self._handles = dict[str, BegunHandle]()
        self.states = dict[str, dict[str, Any]]()

    @property
    def ids(self) -> list[str]:
        """The tasks that this client has: an unknown id and another user's look alike."""
        return list(self._handles)

    async def find(self, asked: object) -> None:
        """Find the tasks with these ids. Raises `MCPError` for an invalid list, and if Redis does not answer."""
        if not isinstance(asked, Sequence) or isinstance(asked, str) or not all(map(_is_id, asked)):
            raise MCPError(types.INVALID_PARAMS, "taskIds must be a list of tasks' ids.")
        if len(asked) > _MOST_TASKS:
            raise MCPError(types.INVALID_PARAMS, f"At most {_MOST_TASKS} tasks can be listened to on one stream.")
        for task_id in dict.fromkeys(asked):
            handle = await self._tasks.find(self._view, task_id)
            if handle is not None:
                self._handles[task_id] = handle

    @asynccontextmanager
    async def putting_into(self, queue: ChangeQueue) -> AsyncGenerator[None]:
        """Put each change into a queue in this block; at first where each task is."""
        follow = [asyncio.create_task(self._follow(each, queue), name="toolfleet-mcp-task") for each in self.ids]
        try:
            yield
        finally:
            await end(follow)

    def leave(self) -> None:
        """Follow them no further: they go on."""
        for handle in self._handles.values():
            handle.leave()

    async def _follow(self, task_id: str, queue: ChangeQueue) -> None:
        handle, said = self._handles[task_id], None
        while True:
            try:
                state = await self._tasks.state(self._view, handle, takes_forms=self._takes_forms)
            except FleetUnavailable:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            except Exception:  # a defect of ours: the stream tells of everything else all the same
                log.exception("task_not_followed")
                return
            facts = [state.get(name) for name in _CHANGING]
            if facts != said:
                said, self.states[task_id] = facts, state
                queue.put(ViewChange("task", task_id))
            if state["status"] in _ENDED:
                return
            await handle.end_within(_POLL_SECONDS)


def _is_id(given: object) -> bool:
    return isinstance(given, str) and 0 < len(given) <= _LONGEST_ID
