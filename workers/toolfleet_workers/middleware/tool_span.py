"""Surrounds a tool that is run with its INTERNAL span; is there only where the worker is traced."""

import asyncio
import json
from contextvars import ContextVar
from typing import Any

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Attempt
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.policy.redaction import REDACTED, redacted
from toolfleet_registry.tracing import port
from toolfleet_registry.tracing.port import OpenSpan, TraceContext, Tracing, Unrecorded, carried
from toolfleet_workers.runner import Middleware, Proceed

_MOST_CONTENT = 8_192  # characters of a call's arguments, and of its result
_LOCAL = f"{LOCAL}."
_open: ContextVar[OpenSpan | None] = ContextVar("toolfleet_tool_span", default=None)  # where it has contents


class ToolSpan:
    """A span around all other middleware: it shows a call as all of them let it pass."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def skips(self, call: PublishedCall) -> bool:
        """Return whether a call is not recorded, and no function here runs it, which may start spans of its own."""
        return type(carried()) is Unrecorded and not call.tool_name.startswith(_LOCAL)

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Implements `Middleware`."""
        tracing = self._tracing
        started = tracing.start(
            port.execute_name(call.tool_name),
            "internal",
            {port.GEN_AI_OPERATION: port.EXECUTE_TOOL, port.GEN_AI_TOOL_NAME: call.tool_name},
            parent=carried(),
        )
        with tracing.within(started):
            return await (proceed(call) if isinstance(started, TraceContext) else self._run(started, call, proceed))

    async def _run(self, span: OpenSpan, call: PublishedCall, proceed: Proceed) -> Attempt:
        span.note(
            {
                port.GEN_AI_TOOL_TYPE: "function",
                port.GEN_AI_TOOL_CALL_ID: call.call_id,
                port.GEN_AI_AGENT_NAME: call.caller.agent,
            }
        )
        if self._tracing.has_contents:
            _open.set(span)
        try:
            attempt = await proceed(call)
            self._say(span, call, attempt)
        except TimeoutError:
            span.fail("timed_out")
            raise
        except asyncio.CancelledError:
            span.fail("cancelled")
            raise
        finally:
            span.end()
        return attempt

    def _say(self, span: OpenSpan, call: PublishedCall, attempt: Attempt) -> None:
        if attempt.goes_on:
            return
        result = attempt.result
        span.note({port.EFFECT_STATE: result.effect_state})
        if not result.success:
            span.fail(result.error_code or port.OTHER_ERROR)
        elif self._tracing.has_contents:
            span.note({port.GEN_AI_RESULT: REDACTED if call.hides_results else _text(result.result)})


class ShownArguments:
    """Has a tool's span show what the tool is told: `check`, the last middleware, gets it without what others hide."""

    def __init__(self, check: Middleware) -> None:
        self._check = check

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Implements `Middleware`."""
        span = _open.get()
        if span is not None:
            span.note({port.GEN_AI_ARGUMENTS: _text(redacted(call.arguments, call.sensitive))})
        return await self._check(call, proceed)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:_MOST_CONTENT]
