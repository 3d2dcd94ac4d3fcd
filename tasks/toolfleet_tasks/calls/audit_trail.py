"""Writes the audit lines of calls that end in their agent, before anybody else has heard of them."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import Caller, PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.pending_call import audited, new_call_id
from toolfleet_tasks.ledger.audit import FIELD, AuditLine, Auditor, text_of
from toolfleet_tasks.redis.connection import PipelinedConnection, RedisConnectionClosed, RedisConnectionLost

_KEPT_AT_MOST = 1_000  # lines that wait while Redis is away; the oldest are dropped then
_SETTLE_SECONDS = 1.0  # for the last lines to be written when the fleet is left


class AuditTrail:
    """Writes lines over `connection`, and waits for none. While Redis is away the latest are kept; what is lost is counted.

    Belongs to the connection's event loop. Fails open: no result is lost or delayed for its audit line.
    """

    def __init__(self, connection: PipelinedConnection, settings: Settings) -> None:
        self.auditor = Auditor(settings)
        self._connection = connection
        self._command = ("XADD", settings.keys.audit, "MAXLEN", "~", settings.audit_kept, "*", FIELD)
        self._waiting = deque[str]()
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
        """The result of a call that has not come to be, once its line is on its way; `tool` if it is known."""
        call_id = new_call_id()
        self._write(self.auditor.line_of_refused(call_id, call, caller, result, decisions, tool))
        return audited(call_id, result)

    def unpublished(self, call: PublishedCall, result: ToolResult) -> ToolResult:
        """The same for a call that is surely not in its queue."""
        self._write(self.auditor.line_of_unpublished(call, result))
        return audited(call.call_id, result)

    async def settle(self) -> None:
        """Wait a little for what was sent, and for the connection if it is away; what is not written by then counts as lost."""
        if self._waiting and not self._connection.is_closed:
            with contextlib.suppress(TimeoutError, RedisConnectionClosed):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self._connection.connected()  # it sends what waits
        if self._sent:
            await asyncio.wait(self._sent, timeout=_SETTLE_SECONDS)
        for _ in self._waiting:
            self.auditor.miss("Redis was not there when the fleet was left")
        self._waiting.clear()

    def _write(self, line: AuditLine) -> None:
        self.auditor.tell(line)
        if self._connection.is_connected:
            self._send(text_of(line))
        else:
            self._keep(text_of(line))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for text in waiting:
            self._send(text)

    def _send(self, text: str) -> None:
        sent = self._connection.send(*self._command, text)
        self._sent.add(sent)
        sent.add_done_callback(lambda done: self._answered(done, text))

    def _answered(self, sent: "asyncio.Future[Any]", text: str) -> None:
        self._sent.discard(sent)
        error = None if sent.cancelled() else sent.exception()
        if isinstance(error, RedisConnectionLost) and not error.sent and not self._connection.is_closed:
            self._keep(text)
        elif error is not None:  # sent again it could be there twice
            self.auditor.miss(str(error))

    def _keep(self, text: str) -> None:
        if len(self._waiting) >= _KEPT_AT_MOST:
            self._waiting.popleft()
            self.auditor.miss("Redis was away for too long")
        self._waiting.append(text)


def refused_without_redis(settings: Settings, call: ToolCall, caller: Caller, result: ToolResult) -> ToolResult:
    """As `AuditTrail.refused`, where there is no Redis that could keep the line: only the log is told."""
    auditor, call_id = Auditor(settings), new_call_id()
    auditor.tell(auditor.line_of_refused(call_id, call, caller, result, {}, None))
    auditor.miss("Redis does not answer")
    return audited(call_id, result)
