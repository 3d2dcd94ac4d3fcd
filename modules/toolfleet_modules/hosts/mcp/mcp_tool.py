"""Makes a module's tool of a server's: sends a call there once, and returns its answer, or follows the server's task."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Literal, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_modules.calls.reply import Reply, StatusAnswer, question_reply
from toolfleet_modules.calls.work import RunMeans, ServedRun
from toolfleet_modules.hosts.mcp.exchanges import Lost, Malformed, NotTaken, Refused, StatusFailed, Unanswered, reply_of
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_modules.hosts.mcp.passed_tool import PassedTool, ServerTool
from toolfleet_modules.hosts.mcp.questions import (
    Ask,
    Ears,
    HeldCalls,
    ServerQuestion,
    TaskInputs,
    answers_of,
    handle_in,
    is_held,
    question_of,
)
from toolfleet_modules.hosts.mcp.sessions import RETURN_SECONDS
from toolfleet_modules.hosts.mcp.tool_list import listed_tools
from toolfleet_modules.hosts.mcp.transport import CallListener
from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.call_context import Context, LogMessage, LogSink, log_message_in, progress_of
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.functions.failures import InputRequired, ModuleBusy, ToolError
from toolfleet_registry.functions.passed_methods import PassedError

_log = logging.getLogger("toolfleet.host")

_LONGEST_HANDLE = 512  # characters
_POLL_SECONDS = (0.1, 60.0)  # how soon and how late a server may have itself asked

_LONGEST_WORDS = 1000  # characters of a server's about a failure
_LONGEST_WAIT = 300.0  # seconds that a server may have its callers wait


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
        """The task as JSON, in ASCII."""
        return json.dumps([self.task_id, self.tool_name, self.user_id], separators=(",", ":"))

    @classmethod
    def of(cls, answer: Mapping[str, Any], tool_name: str, user_id: str | None) -> "ServerTask | None":
        """Return the task in a server's answer; `None` for one that could not be asked for."""
        task_id = answer.get("taskId")
        task = cls(task_id, tool_name, user_id) if isinstance(task_id, str) and task_id else None
        return task if task is not None and len(task.handle) <= _LONGEST_HANDLE else None

    @classmethod
    def read(cls, handle: str) -> "ServerTask":
        """Return the task of a handle. Raises `ValueError`."""
        task_id, tool_name, user_id = json.loads(handle)
        return cls(str(task_id), str(tool_name), None if user_id is None else str(user_id))


@dataclass(frozen=True, slots=True)
class McpTool(ServerTool):
    """A tool that its server names `original`. `suspect` is called with a session in which a call did not come back.

    `has_header_arguments`: some are sent as headers over HTTP. `held`: the calls that a server asks about in the
    middle; `None` if it may not.
    """

    argument_names: frozenset[str]
    original: str
    suspect: Callable[[McpSession], None]
    held: HeldCalls | None = None
    has_header_arguments: bool = False

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "McpRun":
        """Return a run with these arguments, which the server checks."""
        return McpRun(self, context, arguments, means.most_bytes)


@dataclass(frozen=True, slots=True)
class McpRun(ServedRun[McpTool]):
    """One run."""

    arguments: Mapping[str, Any]
    most_bytes: int

    async def run(self) -> Reply:
        """Send it, and wait for the answer. Raises `ModuleBusy`, `NotBegun` and `asyncio.CancelledError`."""
        try:
            return self.tool.without_secrets(await self._run())
        except ToolError as exc:
            return Reply.failure(self.name, self.tool.secrets.hide(str(exc)), effect_state=exc.effect_state)

    async def _run(self) -> Reply:
        if (task := self._task) is not None:
            return Reply.accepted(self.name, task.handle, poll_after_seconds=0)
        try:
            stop = await (self._sent() if self._held_in is None else self._held(self._held_in))
            return self._reply_to(stop)
        except ServerAway:
            raise ModuleBusy(RETURN_SECONDS) from None
        except MCPError as exc:
            return self._failure_of(exc)
        except TimeoutError:
            return self._unknown("its server's question was not answered in time")

    def _reply_to(self, stop: dict[str, Any] | ServerQuestion) -> Reply:
        """Return the reply to what its server has answered, or asks. Raises `Malformed`."""
        if isinstance(stop, ServerQuestion):
            return self._asked(lambda: InputRequired(stop.requests, stop.state, effect_state=self._effect_state))
        kind = stop.get("resultType")
        if kind == "task":
            return self._accepted(stop)
        if kind == "input_required":
            return self._asked(lambda: question_of(stop, effect_state=self._effect_state))
        return reply_of(self.tool.definition, stop, most_bytes=self.most_bytes)

    @property
    def _task(self) -> ServerTask | None:
        """The task that had its question answered: it continues, and gets the answer there. Raises `ToolError`."""
        handle = None if self.context.inputs is None else handle_in(self.context.inputs.state)
        if handle is None:
            return None
        try:
            task = ServerTask.read(handle)
        except ValueError:
            task = None
        if task is None or (task.tool_name, task.user_id) != (self.name, self.context.user_id):
            raise ToolError(f"{self.name} was answered what it has not asked.", effect_state="none")
        return task

    @property
    def _held_in(self) -> HeldCalls | None:
        """The held calls, if its server may ask in the middle of it."""
        return self.tool.held if self.context.takes_input else None

    async def _held(self, calls: HeldCalls) -> dict[str, Any] | ServerQuestion:
        """Return the server's answer, or what it asks next. Raises as `_sent`, and `TimeoutError`."""
        inputs, call_id = self.context.inputs, self.context.call_id
        if inputs is None or not is_held(inputs.state):
            held = calls.begun(call_id, self.context.seconds_left, self._ears, self._sent)
        elif (known := calls.answered(call_id, inputs, self._ears)) is not None:
            held = known
        else:
            text = f"{self.name} did not end: the process that held it for its server's question has ended."
            raise ToolError(text, effect_state=self._effect_state)
        return await calls.next_stop(held)

    async def _sent(self, ask: Ask | None = None, ears: Ears | None = None) -> dict[str, Any]:
        """Return the server's answer to the call. Raises `ModuleBusy`, `NotBegun`, `ToolError`, and what `McpSession.call` does."""
        ears = ears or self._ears
        async with self.tool.sessions.taken(self.context.user_id) as connection:
            if connection.turns is None:
                return await self._sent_in(connection, ears)
            async with connection.turns.taken(ask):
                return await self._sent_in(connection, ears)

    async def _sent_in(self, connection: McpSession, ears: Ears) -> dict[str, Any]:
        if self.tool.has_header_arguments and not connection.has_listed:
            await listed_tools(connection)
        if (log := ears.sink) is not None:
            await connection.set_log_level(log.least)
        self.check_begin()
        try:
            answers = answers_of(self.context.inputs)
        except ValueError:
            text = f"{self.name} was answered what it has not asked."
            raise ToolError(text, effect_state="none") from None
        try:
            return await connection.call(
                self.tool.original,
                self.arguments,
                CallListener(ears.report, log, self.context.user_id),
                takes_input=self.context.takes_input,
                answers=answers,
            )
        except asyncio.CancelledError:
            self.tool.suspect(connection)
            raise

    def _accepted(self, raw: Mapping[str, Any]) -> Reply:
        """Return the reply of a call that the server continues as a task."""
        task = ServerTask.of(raw, self.name, self.context.user_id)
        if task is None:
            return self._unknown("its server continues it as a task without a usable name")
        return Reply.accepted(self.name, task.handle, poll_after_seconds=poll_seconds(raw))

    def _asked(self, question: Callable[[], InputRequired]) -> Reply:
        """Return the reply of a call that continues once its question is answered."""
        if not self.context.takes_input:
            return self._unknown("its server asks for input, and the caller takes no questions")
        try:
            return question_reply(self.name, self.context, question())
        except ValueError as exc:
            return self._unknown(f"its server asks what cannot be passed on: {exc}")

    def _failure_of(self, error: MCPError) -> Reply:
        """Return the reply for an error, by its class: a server's own error is a plain `MCPError`. Raises `ModuleBusy` if nothing was started."""
        message = self.tool.secrets.hide(error.message)[
            :_LONGEST_WORDS
        ]  # hidden first: a value that is cut is not found
        match error:
            case Refused():
                return Reply.failure(self.name, f"{self.name} was refused: {message}", effect_state="none")
            case NotTaken():
                seconds = RETURN_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
                raise ModuleBusy(min(seconds, _LONGEST_WAIT))
            case Lost():
                return self._unknown(message, is_lost=True)
            case StatusFailed(status=status) if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return Reply.failure(self.name, f"{self.name} failed: {message}", effect_state=self._effect_state)
            case Unanswered():
                return self._unknown(message, is_lost=isinstance(error, StatusFailed))
            case _:
                return Reply.failure(
                    self.name,
                    f"{self.name} failed: {message}",
                    effect_state=self._effect_state,
                    result=PassedError(error.code, message, error.data).worded(),
                )

    def _unknown(self, why: str, *, is_lost: bool = False) -> Reply:
        error, effect_state = f"{self.name} did not end: {why}.", self._effect_state
        retryable = is_lost and self.is_repeatable
        if is_lost and effect_state == "unknown":
            return Reply.lost(self.name, error, retryable=retryable)
        return Reply.failure(self.name, error, effect_state=effect_state, retryable=retryable)

    @property
    def _effect_state(self) -> EffectState:
        """The known effect of a started call: only a tool that changes nothing has surely changed nothing."""
        return "none" if self.tool.definition.effect == "read" else "unknown"

    @property
    def _ears(self) -> Ears:
        return Ears(self._report, self._log)

    @property
    def _log(self) -> LogSink | None:
        """The sink of the server's log messages, without secrets."""
        sink, secrets = self.context._log, self.tool.secrets
        if sink is None or not secrets:
            return sink

        def take(message: LogMessage) -> None:
            shown = log_message_in(json.loads(secrets.hide_json(json.dumps(message.fields()).encode())))
            if shown is not None:
                sink.take(shown)

        return LogSink(sink.least, take)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self.context._report is not None:
            fraction = progress / total if total else None
            self.context._report(progress_of(fraction, self.tool.secrets.hide(message or "")))


HostTool: TypeAlias = McpTool | PassedTool


class TaskFollower:
    """The follower of the tasks of one host's server. `offer` returns the present tools, by their full names."""

    def __init__(self, offer: Callable[[], Mapping[str, HostTool]], *, most_bytes: int) -> None:
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

    async def _followed(self, tool: HostTool, session: McpSession, task: ServerTask, known: TaskInputs) -> StatusAnswer:
        """Give the task the answers that it waits for, and say where it is, or what it asks beyond those."""
        state = await _asked(session, "tasks/get", task)
        due = known.due(_requests_in(state)) if _is_asking(state) else {}
        if due and not await _is_delivered(session, task, due):  # it has them already, or asks about them again
            state, known = await _asked(session, "tasks/get", task), known.without(due)
        if _is_asking(state):
            return await self._asking(state, tool, session, task, known)
        return self._judged(state, tool, task)

    async def _asking(
        self, state: Mapping[str, Any], tool: HostTool, session: McpSession, task: ServerTask, known: TaskInputs
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

    def _judged(self, state: Mapping[str, Any], tool: HostTool, task: ServerTask) -> StatusAnswer:
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

    def _completed(self, result: object, tool: HostTool) -> StatusAnswer:
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
