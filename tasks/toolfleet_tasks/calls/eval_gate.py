"""Asks an agent's own gate before a call of a tool that requires it is published, for only the agent knows the context.

A gate that raises, or does not answer in time, lets calls pass with a warning; but for those that must not happen twice.
Whatever else it says that is not a clear yes blocks.
"""

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from toolfleet_registry.contracts import Terms, ToolDefinition, ToolResult
from toolfleet_registry.contracts.decisions import note
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.policy.limits import strictest, terms_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tags.tags import ToolContext, ToolDef
from toolfleet_registry.time import machine_clock

log = get_logger(__name__)

_GATE_SECONDS = 2.0  # an agent's user waits meanwhile
_GRACE_SECONDS = 0.5  # a busy loop notices an answer late
_LONGEST_REASON = 2_000  # characters


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What a gate says of a call."""

    approved: bool
    """Whether the call may be made."""
    reason: str = ""
    """Why not, in words for the model."""


class EvalGate(Protocol):
    """Approves or blocks calls of tools that require it, on the agent's event loop. Has two seconds."""

    async def check(self, tool: ToolDef | ToolDefinition, ctx: ToolContext) -> GateDecision:
        """Whether `tool` may be called now. `ctx` is what the agent knows of the conversation.

        Without a context of the agent's, `ctx.raw_arg` has the arguments as JSON, and `ctx.user` the user's id.
        """
        ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an agent knows of a call beside it: the `context`, `terms` beside those of the tool, the `tag` that it came by.

    `raw_arg` is what stood after that tag. `gate` is asked in the place of the agent's own.
    """

    context: ToolContext | None = None
    terms: Terms | None = None
    tag: ToolDef | None = None
    raw_arg: str = ""
    gate: EvalGate | None = None


First: TypeAlias = Callable[[float], Awaitable[ToolResult | None]]
"""What has a say before a gate, within so many seconds: a call that is refused anyway is no gate's concern."""

NOTHING_MORE = Circumstances()
"""What most calls have around them."""


class Evaluation:
    """Asks the gate, if there is one, for the agents that have these settings."""

    def __init__(self, gate: EvalGate | None, settings: Settings) -> None:
        self._gate = gate
        self._blocks_once = settings.gate_blocks_once

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
        """The result of a call that the gate blocks; `None` if it may go on, after `seconds` at the latest.

        Before the gate is asked, and only then, `first` is: it may refuse the call, too, within so many seconds.
        """
        gate = around.gate or self._gate
        if gate is None:
            if tool.requires_gate or (around.terms is not None and around.terms.requires_gate):
                note("gate", "none")
            return None
        terms = strictest(terms_of(tool), around.terms)
        if terms is None or not terms.requires_gate:
            return None
        if first is not None:
            began_at = machine_clock.monotonic()
            if (refusal := await first(seconds)) is not None:
                return refusal
            seconds -= machine_clock.monotonic() - began_at
        context = around.context or ToolContext(raw_arg=_written(arguments), user=user_id or "")
        try:
            decision = await _decided(gate, around.tag or tool, context, seconds=max(min(seconds, _GATE_SECONDS), 0))
        except _GateFailed as exc:
            return self._without_gate(tool, str(exc))
        note("gate", "allowed" if decision.approved else "denied")
        return None if decision.approved else _blocked(tool, decision.reason)

    def _without_gate(self, tool: ToolDefinition, reason: str) -> ToolResult | None:
        is_blocked = self._blocks_once and effect_of(tool) == "once"
        log.warning("gate_failed", tool=tool.name, reason=reason, is_blocked=is_blocked)
        note("gate", "failed_closed" if is_blocked else "failed_open")
        if not is_blocked:
            return None
        text = f"Tool call blocked: the gate did not approve it ({reason}), and its effect must not happen twice."
        return _blocked(tool, text)


class _GateFailed(Exception):
    """It came to no decision; the message says how."""


async def _decided(
    gate: EvalGate, tool: ToolDef | ToolDefinition, context: ToolContext, *, seconds: float
) -> GateDecision:
    """What the gate says in a task of its own: what it raises is its own matter, `CancelledError` among it."""
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


async def _asked(gate: EvalGate, tool: ToolDef | ToolDefinition, context: ToolContext) -> GateDecision:
    answer: object = gate.check(tool, context)
    return _read(await answer if inspect.isawaitable(answer) else answer, tool.name)


def _read(answer: object, tool_name: str) -> GateDecision:
    """A decision of any class that has the two fields; anything else is a no."""
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
