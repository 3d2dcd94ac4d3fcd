"""Asks an agent's own gate before a call of a tool that requires it is published: only the agent knows the context.

A gate that raises, or does not answer in time, lets calls pass with a warning; but for those that must not happen
twice, and for gates that fail closed: then a missing gate blocks, too. Any answer that is not a clear yes blocks.
"""

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from toolfleet_registry.contracts import RetryTerms, Terms, ToolDefinition, ToolResult
from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.contracts.calls import note
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.limits import NOWHERE, Within

if TYPE_CHECKING:
    from toolfleet_registry.tags import ToolDef

log = get_logger(__name__)

_GATE_SECONDS = 2.0  # an agent's user waits meanwhile
_GRACE_SECONDS = 0.5  # a busy loop notices an answer late
_LONGEST_REASON = 2_000  # characters
_NO_GATE = "Tool call blocked: it requires the agent's gate, and there is none."


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A gate's decision about a call."""

    approved: bool
    """Whether the call may be made."""
    reason: str = ""
    """Why not, in words for the model."""


class EvalGate(Protocol):
    """Approves or blocks calls of tools that require it, on the agent's event loop, within two seconds."""

    async def check(self, tool: "ToolDef | ToolDefinition", ctx: ToolContext) -> GateDecision:
        """Decide whether a tool may be called now.

        Args:
            tool: The tool; a tag's own definition if the call came by a tag.
            ctx: The agent's context of the conversation. Without one, `ctx.raw_arg` has the arguments as JSON, and
                `ctx.user` the user's id.

        Returns:
            The decision. Anything but a clear approval blocks the call.

        """
        ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """An agent's knowledge about a call: the `context`, `terms` in addition to the tool's, and the `tag` that it came by.

    `raw_arg` is the text after that tag. `gate` replaces the agent's own. The profile of its caller's agent adds its
    `terms`, `fails_closed` if no call may pass without a gate's approval, where it counts, and its retries. `asked_by`:
    the credentials that have asked for the call that a replay repeats.
    """

    context: ToolContext | None = None
    terms: Terms | None = None
    tag: "ToolDef | None" = None
    raw_arg: str = ""
    gate: EvalGate | None = None
    fails_closed: bool = False
    within: Within = NOWHERE
    retry: RetryTerms | None = None
    asked_by: tuple[str, ...] = ()


First: TypeAlias = Callable[[float], Awaitable[ToolResult | None]]
"""What has a say before a gate, within so many seconds: a call that is refused anyway is no gate's concern."""

NOTHING_MORE = Circumstances()
"""What most calls have around them."""


def requires_gate(tool: ToolDefinition, around: Circumstances) -> bool:
    """Return whether a gate must be asked, for the tool itself or for the call's terms."""
    return tool.requires_gate or (around.terms is not None and around.terms.requires_gate)


class Evaluation:
    """Asks the gate, if there is one, for agents with these settings."""

    def __init__(self, gate: EvalGate | None, settings: Settings) -> None:
        self._gate = gate
        self._fails_closed = settings.gate_fails_closed

    async def refusal(
        self,
        tool: ToolDefinition,
        arguments: Any,
        user_id: str | None,
        around: Circumstances,
        *,
        seconds: float,
        first: First | None = None,
    ) -> ToolResult | None:
        """Return the result of a call that the gate blocks, after `seconds` at the latest; `None` if the call may go on.

        Before the gate is asked, and only then, `first` is: it may refuse the call, too, within so many seconds.
        """
        if not requires_gate(tool, around):
            return None
        gate, fails_closed = around.gate or self._gate, self._fails_closed or around.fails_closed
        if gate is None:
            note("gate", "missing" if fails_closed else "none")
            return _blocked(tool, _NO_GATE) if fails_closed else None
        if first is not None:
            began_at = machine_clock.monotonic()
            if (refusal := await first(seconds)) is not None:
                return refusal
            seconds -= machine_clock.monotonic() - began_at
        context = around.context or ToolContext(raw_arg=_written(arguments), user=user_id or "")
        try:
            decision = await _decided(gate, around.tag or tool, context, seconds=max(min(seconds, _GATE_SECONDS), 0))
        except _GateFailed as exc:
            return self._without_gate(tool, str(exc), fails_closed=fails_closed)
        note("gate", "allowed" if decision.approved else "denied")
        return None if decision.approved else _blocked(tool, decision.reason)

    def _without_gate(self, tool: ToolDefinition, reason: str, *, fails_closed: bool) -> ToolResult | None:
        is_once = effect_of(tool) == "once"
        is_blocked = is_once or fails_closed
        log.warning("gate_failed", tool=tool.name, reason=reason, is_blocked=is_blocked)
        note("gate", "failed_closed" if is_blocked else "failed_open")
        if not is_blocked:
            return None
        why = "nothing else may let it pass" if fails_closed else "its effect must not happen twice"
        text = f"Tool call blocked: the gate did not approve it ({reason}), and {why}."
        return _blocked(tool, text)


class _GateFailed(Exception):
    """The gate has made no decision; the message says why."""


async def _decided(
    gate: EvalGate, tool: "ToolDef | ToolDefinition", context: ToolContext, *, seconds: float
) -> GateDecision:
    """Run the gate in a task of its own, so that its exceptions, also `CancelledError`, stay inside, and return its decision."""
    began_at = machine_clock.monotonic()
    task = asyncio.create_task(_asked(gate, tool, context), name="toolfleet-gate")
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_seen)
    if not task.done():
        raise _GateFailed(f"it did not answer within {seconds:g} s")
    if task.cancelled():
        raise _GateFailed("it was cancelled")
    if (error := task.exception()) is not None:
        raise _GateFailed(f"it raised {type(error).__name__}") from error
    decision, took = task.result(), machine_clock.monotonic() - began_at
    if decision.approved and took > seconds + _GRACE_SECONDS:  # it held the loop, so that nothing could end it
        raise _GateFailed(f"it took {took:.1f} s to approve")
    return decision


async def _asked(gate: EvalGate, tool: "ToolDef | ToolDefinition", context: ToolContext) -> GateDecision:
    answer: object = gate.check(tool, context)
    return _read(await answer if inspect.isawaitable(answer) else answer, tool.name)


def _read(answer: object, tool_name: str) -> GateDecision:
    """Return the decision, of any class that has its two fields; anything else is a no."""
    approved, reason = getattr(answer, "approved", None), getattr(answer, "reason", "")
    if not isinstance(approved, bool):
        with contextlib.suppress(Exception):  # a program's logging that raises must not make a failing gate of it
            log.warning("gate_answer_is_no_decision", tool=tool_name, answer=type(answer).__name__)
        return GateDecision(approved=False, reason="Tool call blocked: the gate's answer is no decision.")
    text = reason if isinstance(reason, str) else ""
    return GateDecision(approved, text[:_LONGEST_REASON].encode("utf-8", "replace").decode())


def _blocked(tool: ToolDefinition, reason: str) -> ToolResult:
    return ToolResult.refused(tool.name, "blocked_by_gate", reason or "Tool call blocked by the gate.")


def _written(arguments: Any) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)


def _seen(task: "asyncio.Task[GateDecision]") -> None:
    if not task.cancelled():
        task.exception()
