"""Runs a call of a local tool: an async function on this worker's loop, a plain one in a thread.

An async function that blocks blocks every other call of its worker; the watchdog names it in the log. What blocks belongs into
a plain function, what computes for long into a process.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolfleet_registry.contracts import ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Health, Lease, LeaseOver, Outcome, require_live
from toolfleet_registry.contracts.call_context import Context, current_log, current_sink
from toolfleet_registry.errors import BodyTooLarge
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import NotBegun, ThreadsHang
from toolfleet_registry.local.local_function import ANSWER_SECONDS, Failure, FunctionRuns, LocalFunction, as_json
from toolfleet_registry.local.local_tools import LocalSource
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tags import TagResult
from toolfleet_workers.runner import ToolLookup, no_time_left, readable, too_late, unsuccessful

log = get_logger(__name__)

# Must exceed `ANSWER_SECONDS`, which is what a call has left that has waited in vain until its deadline.
_COME_BACK_SECONDS = 2 * ANSWER_SECONDS


class LocalExecutor:
    """Calls `functions`, plain ones in `threads` threads at once.

    A result of more than `max_result_bytes` as JSON is refused.

    During a rolling restart workers have different code: with `approvals`, unapproved code is not run here, though the
    tool in effect, which is another worker's, was approved.
    """

    def __init__(
        self, functions: LocalSource, *, max_result_bytes: int, threads: int = 32, approvals: ToolLookup | None = None
    ) -> None:
        self._functions = functions
        self._approvals = approvals
        self._max_result_bytes = max_result_bytes
        self._runs = FunctionRuns(threads=threads)

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """Make one attempt within `seconds`. Raises `TimeoutError` if they are over; the function is cancelled then.

        The text of a function's own error is shown to no caller.
        """
        local = self._functions.find(call.tool_name)
        if local is None or not (self._is_in_effect(local) or await self._is_approved(local)):
            return self._missing(call) if local is None else _withheld(call)
        try:
            arguments = local.bind(call.arguments, call.user_id, call.context)
        except ValueError as exc:
            text = f"Tool execution error: the arguments do not fit: {exc}"
            return unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", text)
        if seconds <= 0:
            return no_time_left(call)
        return await self._run(call, local, arguments, seconds, lease)

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return `None`: a function that was lost with its worker has left no record."""
        del call, seconds, lease
        return None

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Functions are where their worker is, if it could import them."""
        del module, seconds
        return Health.AWAY if self._functions.is_away else Health.WELL

    async def aclose(self) -> None:
        """Give functions that have outlived their calls a last chance to end."""
        await self._runs.aclose()

    def _is_in_effect(self, local: LocalFunction) -> bool:
        if self._approvals is None:
            return True
        seen = self._approvals.find(local.definition.name)
        return seen is not None and seen.definition.code_digest == local.definition.code_digest

    async def _is_approved(self, local: LocalFunction) -> bool:
        return self._approvals is not None and await self._approvals.is_approved(local.definition)

    def _missing(self, call: PublishedCall) -> Attempt:
        """Return the attempt for a missing function.

        If this worker's imports are incomplete, other workers get the call.
        """
        if self._functions.is_complete:
            return unsuccessful(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {call.tool_name}")
        text = "Tool execution error: the module cannot be reached: this worker could not import it; its log says why"
        attempt = unsuccessful(call, Outcome.NOT_SENT, "module_unreachable", text)
        # A single tool that is missing says nothing of the others.
        return replace(attempt, unreached=Health.AWAY if self._functions.is_away else Health.UNKNOWN)

    async def _run(
        self, call: PublishedCall, local: LocalFunction, arguments: Mapping[str, Any], seconds: float, lease: Lease
    ) -> Attempt:
        context = _context_of(call, seconds)
        try:
            returned = await self._runs.run(local, arguments, context, require=functools.partial(require_live, lease))
        except LeaseOver:
            return too_late(call)
        except (NotBegun, ModuleBusy) as exc:
            return _without_thread(call, exc)
        if isinstance(returned, Failure):
            log.error("local_tool_failed", kind=returned.kind, stack=returned.stack)
            if context._is_over:
                raise TimeoutError
            return _failed(call, returned.error)
        return await self._judge(call, returned)

    async def _judge(self, call: PublishedCall, returned: Any) -> Attempt:
        try:
            value, files = await as_json(returned, max_bytes=self._max_result_bytes)
        except BodyTooLarge as exc:
            text = f"Tool execution error: the function's result is larger than {exc.limit} bytes"
            return _unusable(call, "result_too_large", text)
        except ValueError as exc:
            text = f"Tool execution error: the function's result is invalid: {exc}"
            return _unusable(call, "invalid_response", text)
        if isinstance(returned, TagResult) and not returned.success:
            return _failed(call, readable(returned.message or "The tool says that it failed."), value)
        return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, value, files=files))


def _context_of(call: PublishedCall, seconds: float) -> Context:
    """Return the function's context, for questions about its call and for its progress: also in threads of its own."""
    ends_at = machine_clock.monotonic() + seconds
    return Context(
        call.tool_name,
        call.call_id,
        call.user_id,
        call.caller.permission,
        _ends_at=ends_at,
        _report=current_sink(),
        _log=current_log(),
        _arguments=call.arguments,
    )


def _without_thread(call: PublishedCall, exc: Exception) -> Attempt:
    """Return the attempt without a thread.

    It is tried again, if there is time for more than the same answer at its end.
    """
    if not isinstance(exc, ThreadsHang):  # which the log has once, for all calls
        log.warning("local_tool_without_thread", call_id=call.call_id, tool=call.tool_name)
    text = "Tool execution error: no thread was free for the function: others of them run for too long."
    attempt = unsuccessful(call, Outcome.TURNED_AWAY, "busy", text)
    return replace(attempt, retry_after_seconds=_COME_BACK_SECONDS)


def _withheld(call: PublishedCall) -> Attempt:
    """Return the attempt of a withheld tool: another worker may have the code that was approved."""
    text = f"Tool {call.tool_name!r} is withheld: this worker has code of it that no operator has approved."
    return unsuccessful(call, Outcome.NOT_SENT, "permission_denied", text)


def _failed(call: PublishedCall, text: str, value: Any = None) -> Attempt:
    """Return a failure: the function may have done part of its work."""
    result = ToolResult.failed(call.tool_name, "module_error", text, effect_state="unknown")
    return Attempt(Outcome.FAILED, result.model_copy(update={"result": value}))


def _unusable(call: PublishedCall, code: ErrorCode, text: str) -> Attempt:
    """Return a failure: the function has done its work, and its result cannot be passed on."""
    return Attempt(Outcome.FAILED, ToolResult.failed(call.tool_name, code, text, effect_state="done"))
