"""Writes the audit lines of calls that end in their agent, and knows which credential the running code acts for."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.policy.redaction import EVERYTHING
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.pending_call import audited, new_call_id
from toolfleet_tasks.ledger.audit import FIELD, AuditLine, Auditor, text_of
from toolfleet_tasks.ledger.contents import Command, ContentsWriter, send_unanswered
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionClosed, RedisConnectionLost

_credential: ContextVar[tuple[str, str | None] | None] = ContextVar("toolfleet_credential", default=None)

_KEPT_AT_MOST = 1_000  # lines that wait while Redis is away; the oldest are dropped then
_SETTLE_SECONDS = 1.0  # for the last lines to be written when the fleet is left

_Entry: TypeAlias = tuple[str, Command | None]  # a line, and what keeps the call's contents


def set_credential(name: str, user_id: str | None) -> None:
    """Set the credential that the running task's request came with (`key <id>` or `token <subject>`), and its own user.

    Tasks made by it have it, too.
    """
    _credential.set((name, user_id))


def asked_by_here(user_id: str | None) -> tuple[str, ...]:
    """Return the names of the credential and its user if it asks in the name of another user, `user_id`; else none.

    None for its own user: that one is known by the call, and messages without it are read by older versions.
    """
    name, own = _credential.get() or (None, None)
    if name is None or (own is not None and own == user_id):
        return ()
    return (name,) if own is None else (name, f"user {own}")


def credential_here() -> tuple[str, ...]:
    """Return the name of the credential that the running task's request came with, also of its own user; none without one."""
    found = _credential.get()
    return () if found is None else (found[0],)


class AuditTrail:
    """A writer of audit lines over `connection`, which waits for none of them.

    While Redis is away the latest are kept; lost ones are counted.

    Belongs to the connection's event loop. Fails open: no result is lost or delayed for its audit line.
    """

    def __init__(self, connection: PipelinedConnection, settings: Settings) -> None:
        self.auditor = Auditor(settings)
        self._contents = ContentsWriter(settings)
        self._connection = connection
        self._command = ("XADD", settings.keys.audit, "MAXLEN", "~", settings.audit_kept, "*", FIELD)
        self._waiting = deque[_Entry]()
        self._sent = set[asyncio.Future[Any]]()
        connection.on_connect.append(self._flush)

    def refused(
        self,
        call: ToolCall,
        caller: Caller,
        result: ToolResult,
        decisions: Mapping[str, str],
        tool: ToolDefinition | None = None,
    ) -> ToolResult:
        """Return the result of a call that is refused, once its line is sent; `tool` if it is known."""
        call_id = new_call_id()
        line, contents = self.auditor.line_of_refused(call_id, call, caller, result, decisions, tool), None
        if self._contents.is_on:
            # A model that misspells a sensitive argument has written it where no schema marks it: values are hidden.
            shown: dict[str, Any] = {
                "call_id": call_id,
                "tool_name": call.tool_name,
                "arguments": call.arguments if isinstance(call.arguments, dict) else {},
                "sensitive": (EVERYTHING,),
                "user_id": call.user_id if caller.user_id is None else caller.user_id,
            }
            contents = self._contents.command(PublishedCall.model_construct(**shown), result)
        self._write(line, contents)
        return audited(call_id, result)

    def unpublished(self, call: PublishedCall, result: ToolResult) -> ToolResult:
        """Return the result of a call that is surely not in its queue, once its line is sent."""
        self._write(self.auditor.line_of_unpublished(call, result), self._contents.command(call, result))
        return audited(call.call_id, result)

    async def settle(self) -> None:
        """Wait a little for the sent lines, and for the connection if it is away. Unwritten lines count as lost."""
        if self._waiting and not self._connection.is_closed:
            with contextlib.suppress(TimeoutError, RedisConnectionClosed):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self._connection.connected()  # it sends what waits
        if self._sent:
            await asyncio.wait(self._sent, timeout=_SETTLE_SECONDS)
        for _ in self._waiting:
            self.auditor.miss("Redis was not there when the fleet was left")
        self._waiting.clear()

    def _write(self, line: AuditLine, contents: Command | None) -> None:
        self.auditor.tell(line)
        entry = text_of(line), contents
        if self._connection.is_connected:
            self._send(entry)
        else:
            self._keep(entry)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            self._send(entry)

    def _send(self, entry: _Entry) -> None:
        if entry[1] is not None:
            send_unanswered(self._connection, entry[1])
        sent = self._connection.send(*self._command, entry[0])
        self._sent.add(sent)
        sent.add_done_callback(lambda done: self._answered(done, entry))

    def _answered(self, sent: "asyncio.Future[Any]", entry: _Entry) -> None:
        self._sent.discard(sent)
        error = None if sent.cancelled() else sent.exception()
        if isinstance(error, RedisConnectionLost) and not error.sent and not self._connection.is_closed:
            self._keep(entry)
        elif error is not None:  # sent again it could be there twice
            self.auditor.miss(str(error))

    def _keep(self, entry: _Entry) -> None:
        if len(self._waiting) >= _KEPT_AT_MOST:
            self._waiting.popleft()
            self.auditor.miss("Redis was away for too long")
        self._waiting.append(entry)


def refused_without_redis(settings: Settings, call: ToolCall, caller: Caller, result: ToolResult) -> ToolResult:
    """Implements `AuditTrail.refused` without a Redis for the line: it is only logged."""
    auditor, call_id = Auditor(settings), new_call_id()
    auditor.tell(auditor.line_of_refused(call_id, call, caller, result, {}, None))
    auditor.miss("Redis does not answer")
    return audited(call_id, result)
