"""Makes a module's tool of a server's: a call is sent there once, and its answer comes back as a reply."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway
from toolfleet_modules.hosts.mcp.results import reply_of, result_of
from toolfleet_modules.hosts.mcp.server_inputs import answers_of, question_of
from toolfleet_modules.hosts.mcp.server_tasks import ServerTask, poll_seconds
from toolfleet_modules.hosts.mcp.sessions import RETURN_SECONDS, McpSessions
from toolfleet_modules.hosts.mcp.transports.http_errors import BROKEN, REFUSED, TURNED_AWAY, did_nothing
from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_modules.requests.question import question_reply
from toolfleet_modules.requests.reply import Reply
from toolfleet_modules.sdk.served_run import ServedRun
from toolfleet_modules.sdk.tool_run import RunMeans
from toolfleet_registry.contracts import EffectState, ToolDefinition
from toolfleet_registry.contracts.progress import progress_of
from toolfleet_registry.functions.call_context import Context
from toolfleet_registry.functions.failures import ModuleBusy, ToolError
from toolfleet_registry.functions.passed_errors import PassedError

_LONGEST_WAIT = 300.0  # seconds that a server may have its callers wait


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool that its server names `original`. `suspect` is told of a session in which a call did not come back."""

    definition: ToolDefinition
    argument_names: frozenset[str]
    original: str
    sessions: McpSessions
    secrets: Secrets
    suspect: Callable[[McpSession], None]

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
            async with self.tool.sessions.taken(self.context.user_id) as connection:
                return self.tool.without_secrets(await self._run_in(connection))
        except ToolError as exc:
            return Reply.failure(self.name, str(exc), effect_state=exc.effect_state)

    async def _run_in(self, connection: McpSession) -> Reply:
        self.check_begin()
        try:
            answers = answers_of(self.context.inputs)
        except ValueError:
            return Reply.failure(self.name, f"{self.name} was answered what it has not asked.", effect_state="none")
        try:
            takes_input = self.context.takes_input
            answer = await connection.call(
                self.tool.original, self.arguments, self._report, takes_input=takes_input, answers=answers
            )
            kind = answer.get("resultType")
            if kind == "task":
                return self._accepted(answer)
            if kind == "input_required":
                return self._asked(answer)
            return reply_of(self.tool.definition, result_of(answer), most_bytes=self.most_bytes)
        except ServerAway:
            raise ModuleBusy(RETURN_SECONDS) from None
        except asyncio.CancelledError:
            self.tool.suspect(connection)
            raise
        except MCPError as exc:
            return self._failure_of(exc)
        except ValidationError:
            return self._unknown("its server's answer is none of the protocol")

    def _accepted(self, raw: Mapping[str, Any]) -> Reply:
        """The server goes on with it by itself."""
        task = ServerTask.of(raw, self.name, self.context.user_id)
        if task is None:
            return self._unknown("its server goes on with it under a name that nobody could ask for")
        return Reply.accepted(self.name, task.handle, poll_after_seconds=poll_seconds(raw))

    def _asked(self, raw: Mapping[str, Any]) -> Reply:
        """The server is called again once that is answered."""
        if not self.context.takes_input:
            return self._unknown("its server asks for input, which nobody here can give")
        try:
            return question_reply(self.name, self.context, question_of(raw, effect_state=self._effect_state))
        except ValueError as exc:
            return self._unknown(f"its server asks what cannot be passed on: {exc}")

    def _failure_of(self, error: MCPError) -> Reply:
        """What an error comes to. Raises `ModuleBusy` where nothing was begun, and may be later."""
        if error.code == REFUSED:
            return Reply.failure(self.name, f"{self.name} was refused: {error.message}", effect_state="none")
        if did_nothing(error):
            raise ModuleBusy(_wait_of(error) if error.code == TURNED_AWAY else RETURN_SECONDS)
        if error.code in {types.CONNECTION_CLOSED, BROKEN}:
            return self._unknown("the connection to its server ended in the middle", is_lost=True)
        return Reply.failure(
            self.name,
            f"{self.name} failed: {error.message}",
            effect_state=self._effect_state,
            result=PassedError(error.code, error.message, error.data).worded(),
        )

    def _unknown(self, why: str, *, is_lost: bool = False) -> Reply:
        return Reply.failure(
            self.name,
            f"{self.name} did not end: {why}.",
            effect_state=self._effect_state,
            retryable=is_lost and self.is_repeatable,
        )

    @property
    def _effect_state(self) -> EffectState:
        """What is known of the effect of a call that has begun: only what changes nothing has surely changed nothing."""
        return "none" if self.tool.definition.effect == "read" else "unknown"

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self.context._report is not None:  # noqa: SLF001 - made for this run
            fraction = progress / total if total else None
            self.context._report(progress_of(fraction, self.tool.secrets.hide(message or "")))  # noqa: SLF001 - as above


def _wait_of(error: MCPError) -> float:
    seconds: object = error.data.get("retry_after_seconds") if isinstance(error.data, dict) else None
    if isinstance(seconds, int | float) and seconds >= 0:
        return min(float(seconds), _LONGEST_WAIT)
    return RETURN_SECONDS
