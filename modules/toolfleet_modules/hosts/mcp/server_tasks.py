"""Follows the tasks that a server makes of calls: it goes on by itself, and is asked where they are."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_modules.hosts.mcp.exchanges import Malformed, reply_of
from toolfleet_modules.hosts.mcp.mcp_session import McpSession
from toolfleet_modules.hosts.mcp.questions import TaskInputs
from toolfleet_modules.requests.reply import Reply, StatusAnswer
from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.inputs import CallInputs

if TYPE_CHECKING:  # they import this file
    from toolfleet_modules.hosts.mcp.mcp_tool import McpTool
    from toolfleet_modules.hosts.mcp.passed_tool import PassedTool, WatchTool

    HostTool: TypeAlias = McpTool | PassedTool | WatchTool

_log = logging.getLogger("toolfleet.host")

_LONGEST_HANDLE = 512  # characters
_POLL_SECONDS = (0.1, 60.0)  # how soon and how late a server may have itself asked


class TaskParams(types.RequestParams):
    """Names a task."""

    task_id: str


class TaskAnswers(TaskParams):
    """Answers some of what a task asks, by its keys."""

    input_responses: dict[str, Any]


class TaskQuestion(types.Request[TaskParams, Literal["tasks/get", "tasks/cancel"]]):
    """Asks for a task, or for its end."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get", "tasks/cancel"]
    params: TaskParams


class TaskUpdate(types.Request[TaskAnswers, Literal["tasks/update"]]):
    """Gives a task its answers."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"]
    params: TaskAnswers


@dataclass(frozen=True, slots=True)
class ServerTask:
    """A task of `user_id`'s call of a tool. `handle` has all of it, so that it is known after a restart, too."""

    task_id: str
    tool_name: str
    user_id: str | None

    @property
    def handle(self) -> str:
        """As JSON, in ASCII."""
        return json.dumps([self.task_id, self.tool_name, self.user_id], separators=(",", ":"))

    @classmethod
    def of(cls, answer: Mapping[str, Any], tool_name: str, user_id: str | None) -> "ServerTask | None":
        """Return the task in a server's answer; `None` for one that could not be asked for."""
        task_id = answer.get("taskId")
        task = cls(task_id, tool_name, user_id) if isinstance(task_id, str) and task_id else None
        return task if task is not None and len(task.handle) <= _LONGEST_HANDLE else None

    @classmethod
    def read(cls, handle: str) -> "ServerTask":
        """The task of a handle. Raises `ValueError`."""
        task_id, tool_name, user_id = json.loads(handle)
        return cls(str(task_id), str(tool_name), None if user_id is None else str(user_id))


class TaskFollower:
    """Knows the tasks of one host's server. `offer` says which tools there are now, by their full names."""

    def __init__(self, offer: Callable[[], Mapping[str, "HostTool"]], *, most_bytes: int) -> None:
        self._offer, self._most_bytes = offer, most_bytes

    async def status(
        self, call_id: str, handle: str, *, cancel: bool, inputs: CallInputs | None = None
    ) -> StatusAnswer:
        """Ask the server. Raises its errors while it is away: then the fleet asks again."""
        del call_id
        try:
            task = ServerTask.read(handle)
        except ValueError:
            return StatusAnswer.unknown()
        tool = self._offer().get(task.tool_name)
        if tool is None:
            return StatusAnswer.unknown()
        async with tool.sessions.taken(task.user_id) as session:
            try:
                if cancel:
                    await _cancel(session, task)
                return await self._followed(tool, session, task, TaskInputs.of(inputs, handle))
            except MCPError as exc:
                if exc.code == types.INVALID_PARAMS:  # it knows the task no more
                    return StatusAnswer.unknown()
                raise

    async def _followed(
        self, tool: "HostTool", session: McpSession, task: ServerTask, known: TaskInputs
    ) -> StatusAnswer:
        """Give the task the answers that it waits for, and say where it is, or what it asks beyond those."""
        state = await _asked(session, "tasks/get", task)
        due = known.due(_requests_in(state)) if _is_asking(state) else {}
        if due and not await _is_delivered(session, task, due):  # it has them already, or asks about them again
            state, known = await _asked(session, "tasks/get", task), known.without(due)
        if _is_asking(state):
            return await self._asking(state, tool, session, task, known)
        return self._judged(state, tool, task)

    async def _asking(
        self, state: Mapping[str, Any], tool: "HostTool", session: McpSession, task: ServerTask, known: TaskInputs
    ) -> StatusAnswer:
        """Return the task's new question.

        Without one it waits for the previous answer to take effect, and continues.
        """
        if not (new := known.new(_requests_in(state))):
            return StatusAnswer.running(
                None,
                tool.secrets.hide(str(state.get("statusMessage") or "")),
                poll_after_seconds=poll_seconds(state),
            )
        effect_state: EffectState = "none" if tool.definition.effect == "read" else "unknown"
        try:
            kept = known.state_with(new, task.handle)
            asked = Reply.question(task.tool_name, new, kept, effect_state=effect_state)
        except ValueError as exc:
            await _cancel(session, task)
            return StatusAnswer.failed(f"Its server asks what cannot be passed on: {exc}.", effect_state=effect_state)
        return StatusAnswer.asking(tool.without_secrets(asked))

    def _judged(self, state: Mapping[str, Any], tool: "HostTool", task: ServerTask) -> StatusAnswer:
        match state.get("status"):
            case "working":
                message = tool.secrets.hide(str(state.get("statusMessage") or ""))
                return StatusAnswer.running(None, message, poll_after_seconds=poll_seconds(state))
            case "completed":
                return self._completed(state.get("result"), tool)
            case "failed":
                error = state.get("error")
                words = str(error.get("message")) if isinstance(error, dict) else str(state.get("statusMessage") or "")
                reply = Reply.failure(task.tool_name, f"{task.tool_name} failed: {words}", effect_state="unknown")
                return StatusAnswer.ended(tool.without_secrets(reply))
            case "cancelled":
                return StatusAnswer.failed("Its server has ended it before it was done.")
            case _:
                return StatusAnswer.unknown()

    def _completed(self, result: object, tool: "HostTool") -> StatusAnswer:
        try:
            reply = reply_of(tool.definition, result, most_bytes=self._most_bytes)
        except Malformed as exc:
            reply = Reply.failure(tool.definition.name, f"It did not end: {exc.message}.", effect_state="unknown")
        return StatusAnswer.ended(tool.without_secrets(reply))


def poll_seconds(state: Mapping[str, Any]) -> float | None:
    """Return the server's own poll interval, if it states one."""
    interval = state.get("pollIntervalMs")
    if isinstance(interval, bool) or not isinstance(interval, int | float):
        return None
    shortest, longest = _POLL_SECONDS
    return min(max(interval / 1000, shortest), longest)


async def _is_delivered(session: McpSession, task: ServerTask, responses: Mapping[str, Any]) -> bool:
    """Give a task its answers. False if its server refuses them: it may have them by now."""
    params = TaskAnswers(task_id=task.task_id, input_responses=dict(responses))
    try:
        await session.request(TaskUpdate(method="tasks/update", params=params))
    except MCPError as exc:
        if exc.code != types.INVALID_PARAMS:
            raise
        _log.warning("%s: its server refuses an answer (error %d)", task.tool_name, exc.code)
        return False
    return True


def _is_asking(state: Mapping[str, Any]) -> bool:
    return state.get("status") == "input_required"


def _requests_in(state: Mapping[str, Any]) -> dict[str, Any]:
    requests = state.get("inputRequests")
    return requests if isinstance(requests, dict) else {}


async def _cancel(session: McpSession, task: ServerTask) -> None:
    """Have a task end. Where its server refuses that, it may have ended in this moment, and knows how."""
    try:
        await _asked(session, "tasks/cancel", task)
    except MCPError as exc:
        if exc.code != types.INVALID_PARAMS:
            raise


async def _asked(session: McpSession, method: Literal["tasks/get", "tasks/cancel"], task: ServerTask) -> dict[str, Any]:
    question = TaskQuestion(method=method, params=TaskParams(task_id=task.task_id))
    return await session.request(question)
