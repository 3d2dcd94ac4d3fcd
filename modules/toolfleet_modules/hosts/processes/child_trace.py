"""Puts a call in a folder's process where it is in its trace, in a span of its own where that process is traced."""

import logging
from collections.abc import Awaitable
from typing import Final

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.tracing import names
from toolfleet_registry.tracing.port import OpenSpan, Tracing
from toolfleet_registry.tracing.switch import switch_here, tracing_of
from toolfleet_registry.tracing.trace_context import TraceContext, carrying

_log = logging.getLogger("toolfleet.host")

_MISSING: Final = "the process of the tools is not traced: %s"


class ChildTrace:
    """The traces of one process, as service `module`. By its own environment, which has no more variables than its host gives it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._tracing: Tracing | None = None
        self._is_faulty = False

    def set_up(self) -> Tracing | None:
        """Whatever this process is traced with: a provider that a tool has set is used as it is. `None`: it is not traced."""
        if self._tracing is None and not self._is_faulty:
            try:
                self._tracing = tracing_of(switch_here(), self._module, is_global=True)
            except SettingsError as exc:  # no reason to serve nothing
                _log.warning(_MISSING, exc)
                self._is_faulty = True
        return self._tracing

    async def of_call(
        self, parent: TraceContext | None, tool: str, call_id: str | None, run: Awaitable[Reply]
    ) -> Reply:
        """What a call comes to, below its host's span. A `parent` of `None`: its host is not traced, and neither is the call."""
        if parent is None:
            return await run
        tracing = self.set_up()
        if tracing is None:
            with carrying(parent):
                return await run
        said = {names.GEN_AI_OPERATION: names.EXECUTE_TOOL, names.GEN_AI_TOOL_NAME: tool}
        started = tracing.start(names.execute_name(tool), "internal", said, parent=parent)
        with tracing.within(started):
            if isinstance(started, TraceContext):
                return await run
            started.note({names.GEN_AI_TOOL_TYPE: "function", names.GEN_AI_TOOL_CALL_ID: call_id})
            return await _recorded(started, run)


async def _recorded(span: OpenSpan, run: Awaitable[Reply]) -> Reply:
    try:
        reply = await run
        if not (reply.is_success or reply.handle or reply.is_question):
            span.fail("cancelled" if reply.is_stopped else "tool_error")
    except BaseException as exc:
        span.fail(type(exc).__name__)
        raise
    finally:
        span.end()
    return reply
