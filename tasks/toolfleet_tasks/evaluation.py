"""An agent's own gate: asked before a call of a tool that requires it is published, for only the agent knows the context.

A gate that fails, or does not answer in time, lets calls pass with a warning; but for those that must not happen twice.
"""

import asyncio
import json
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import structlog

from toolfleet_registry.contracts import Terms, ToolDefinition, ToolResult
from toolfleet_registry.decisions import note
from toolfleet_registry.effects import effect_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import ToolContext, ToolDef
from toolfleet_registry.terms import strictest, terms_of

log = structlog.get_logger(__name__)

_GATE_SECONDS = 2.0  # an agent's user waits meanwhile
_LONGEST_REASON = 2_000  # characters


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What a gate says of a call. `reason` is for the model, where it is not `approved`."""

    approved: bool
    reason: str = ""


class EvalGate(Protocol):
    """Approves or blocks calls of tools that require it, on the agent's event loop. Has two seconds."""

    async def check(self, tool: ToolDef | ToolDefinition, ctx: ToolContext) -> GateDecision:
        """Whether `tool` may be called now. `ctx` is what the agent knows of the conversation.

        Without a context of the agent's, `ctx.raw_arg` has the arguments as JSON, and `ctx.user` the user's id.
        """
        ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an agent knows of a call beside it: the `context`, `terms` beside those of the tool, the `tag` that it came by."""

    context: ToolContext | None = None
    terms: Terms | None = None
    tag: ToolDef | None = None


NOTHING_MORE = Circumstances()
"""What most calls have around them."""


class Evaluation:
    """Asks the gate, if there is one, for the agents that have these settings."""

    def __init__(self, gate: EvalGate | None, settings: Settings) -> None:
        self._gate = gate
        self._blocks_once = settings.gate_blocks_once

    async def refusal(
        self, tool: ToolDefinition, arguments: Any, user_id: str | None, around: Circumstances, *, seconds: float
    ) -> ToolResult | None:
        """The result of a call that the gate blocks; `None` if it may go on, after `seconds` at the latest."""
        if self._gate is None:
            return None
        terms = strictest(terms_of(tool), around.terms)
        if terms is None or not terms.requires_gate:
            return None
        context = around.context or ToolContext(raw_arg=_written(arguments), user=user_id or "")
        try:
            decision = await _decided(self._gate, around.tag or tool, context, seconds=min(seconds, _GATE_SECONDS))
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
    began_at = time.monotonic()
    task = asyncio.create_task(_asked(gate, tool, context), name="toolfleet-gate")
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_seen)
    if not task.done():
        raise _GateFailed(f"it did not answer within {seconds:g} s")
    if time.monotonic() - began_at > 2 * _GATE_SECONDS:
        log.warning("gate_has_blocked_the_loop", tool=tool.name, seconds=round(time.monotonic() - began_at, 1))
    if task.cancelled():
        raise _GateFailed("it was cancelled")
    if (error := task.exception()) is not None:
        raise _GateFailed(f"it raised {type(error).__name__}") from error
    return _read(task.result())


async def _asked(gate: EvalGate, tool: ToolDef | ToolDefinition, context: ToolContext) -> object:
    return await cast("Awaitable[object]", gate.check(tool, context))


def _read(decision: object) -> GateDecision:
    """A decision of any class that has the two fields."""
    approved, reason = getattr(decision, "approved", None), getattr(decision, "reason", "")
    if not isinstance(approved, bool) or not isinstance(reason, str | None):
        raise _GateFailed(f"it answered with {type(decision).__name__}, which is no decision")
    return GateDecision(approved, (reason or "")[:_LONGEST_REASON].encode("utf-8", "replace").decode())


def _blocked(tool: ToolDefinition, reason: str) -> ToolResult:
    return ToolResult.refused(tool.name, "blocked_by_gate", reason or "Tool call blocked by the gate.")


def _written(arguments: Any) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)


def _seen(task: "asyncio.Task[object]") -> None:
    if not task.cancelled():
        task.exception()
