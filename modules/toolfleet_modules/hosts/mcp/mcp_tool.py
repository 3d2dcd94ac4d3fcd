"""Makes a module's tool of a server's: a call is sent there once, and its answer comes back as a reply."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from mcp.shared.exceptions import MCPError

from toolfleet_modules.hosts.mcp.exchanges import Lost, NotTaken, Refused, StatusFailed, Unanswered, reply_of
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_modules.hosts.mcp.questions import (
    Ask,
    Ears,
    HeldCalls,
    ServerQuestion,
    answers_of,
    handle_in,
    is_held,
    question_of,
)
from toolfleet_modules.hosts.mcp.server_tasks import ServerTask, poll_seconds
from toolfleet_modules.hosts.mcp.sessions import RETURN_SECONDS, McpSessions
from toolfleet_modules.hosts.mcp.tool_list import listed_tools
from toolfleet_modules.hosts.mcp.transport import CallListener
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.once.served_tool import RunMeans, ServedRun
from toolfleet_modules.requests.reply import Reply, question_reply
from toolfleet_registry.contracts import EffectState, ToolDefinition
from toolfleet_registry.contracts.call_context import Context, LogMessage, LogSink, log_message_in, progress_of
from toolfleet_registry.functions.failures import InputRequired, ModuleBusy, ToolError
from toolfleet_registry.functions.passed_methods import PassedError

_LONGEST_WORDS = 1000  # characters of a server's about a failure
_LONGEST_WAIT = 300.0  # seconds that a server may have its callers wait


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool that its server names `original`. `suspect` is told of a session in which a call did not come back.

    `has_header_arguments`: some are sent as headers over HTTP. `held`: the calls whose server asks in the middle of
    them; `None` if it may not.
    """

    definition: ToolDefinition
    argument_names: frozenset[str]
    original: str
    sessions: McpSessions
    secrets: Secrets
    suspect: Callable[[McpSession], None]
    held: HeldCalls | None = None
    has_header_arguments: bool = False

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "McpRun":
        """A run with these arguments, which the server checks."""
        return McpRun(self, context, arguments, means.most_bytes)

    def without_secrets(self, reply: Reply) -> Reply:
        """The reply as it may leave the host."""
        return reply.rewritten(self.secrets.hide_json) if self.secrets else reply


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
            return self._unknown("nobody has answered in its time what its server asks")

    def _reply_to(self, stop: dict[str, Any] | ServerQuestion) -> Reply:
        """The reply to what its server has answered, or asks. Raises `Malformed`."""
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
        """The task whose question was answered: it continues, and gets the answer there. Raises `ToolError`."""
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
        """The server's answer, or what it asks next. Raises as `_sent`, and `TimeoutError`."""
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
        """The server's answer to the call. Raises `ModuleBusy`, `NotBegun`, `ToolError`, and what `McpSession.call` does."""
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
        """The server goes on with it by itself."""
        task = ServerTask.of(raw, self.name, self.context.user_id)
        if task is None:
            return self._unknown("its server goes on with it under a name that nobody could ask for")
        return Reply.accepted(self.name, task.handle, poll_after_seconds=poll_seconds(raw))

    def _asked(self, question: Callable[[], InputRequired]) -> Reply:
        """The call goes on once that is answered."""
        if not self.context.takes_input:
            return self._unknown("its server asks for input, which nobody here can give")
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
        sink, secrets = self.context._log, self.tool.secrets  # noqa: SLF001 - made for this run
        if sink is None or not secrets:
            return sink

        def take(message: LogMessage) -> None:
            shown = log_message_in(json.loads(secrets.hide_json(json.dumps(message.fields()).encode())))
            if shown is not None:
                sink.take(shown)

        return LogSink(sink.least, take)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self.context._report is not None:  # noqa: SLF001 - made for this run
            fraction = progress / total if total else None
            self.context._report(progress_of(fraction, self.tool.secrets.hide(message or "")))  # noqa: SLF001 - as above
