"""Calls an agent's tags through the fleet, like any other tool."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from toolfleet_registry.contracts import Caller, Conversation, Terms, ToolCall, ToolResult
from toolfleet_registry.contracts.limits import limits_in
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.errors import ToolNotFound, ToolRateLimited
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.tags import Tag, TagResult, Tags, ToolContext
from toolfleet_tasks.calls.eval_gate import Circumstances, EvalGate
from toolfleet_tasks.client.in_process import OwnProcess

if TYPE_CHECKING:
    from toolfleet_tasks.client.fleet import ToolFleet


class TagRegistry(Tags):
    """The tags of an agent, run by a fleet. Without one their functions run in this process, for bots and tests without a broker.

    Args:
        fleet: The fleet that runs the tags; by default none.
        caller: Returns the caller of a tool. By default that is the context's user, as a guest, with that tool's module
            and no other: everybody who can write to the agent can call the tags that it has registered.
        gate: Is asked before a tag that requires it, instead of the fleet's gate.

    """

    def __init__(
        self,
        fleet: "ToolFleet | None" = None,
        *,
        caller: Callable[[ToolContext], Caller] | None = None,
        gate: EvalGate | None = None,
    ) -> None:
        super().__init__(runs_here=fleet is None)
        self._call = OwnProcess().call_around if fleet is None else fleet.call_around
        self._caller = caller
        self._gate = gate

    async def execute(
        self,
        name: str,
        ctx: ToolContext,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
    ) -> TagResult:
        """Run a tag's tool: within its limits, past the gate, in a worker.

        A module's tool gets the tag's groups as its arguments, by name and as text, without those that are empty. If it
        answers with `{"message": …}`, as a `TagResult` does, that is the message; otherwise its result is, as text or
        JSON.

        Without a fleet functions run here by the same rules, and limits are counted in memory.

        Args:
            name: The tag's name.
            ctx: The context, with the user and the tag's argument.
            conversation: As of `ToolFleet.call`.
            timeout: As of `ToolFleet.call`: seconds until the call has ended.

        Returns:
            The tool's message. Any failure other than those below is a result without success, whose message says what
            happened.

        Raises:
            ToolNotFound: The tool is not registered here, or not available in the fleet.
            ToolRateLimited: A limit is used up.
            SettingsError: Without a fleet: the tag calls a module's tool.

        """
        tag = self.tags().get(name)
        if tag is None:
            raise ToolNotFound(name)
        ctx = _completed(ctx, tag)
        call = _call_of(tag, ctx)
        # Of these and its handler's, the stricter apply.
        terms = Terms(**limits_in(tag.tool), requires_gate=tag.tool.requires_gate)
        began_at = machine_clock.monotonic()
        result = await self._call(
            call,
            self._caller_of(call, ctx),
            Circumstances(ctx, terms, tag.tool, ctx.raw_arg, self._gate),
            conversation=conversation,
            timeout=timeout,
        )
        if result.error_code in {"unknown_tool", "unknown_module"}:
            raise ToolNotFound(call.tool_name)
        if result.error_code == "rate_limited":
            text = result.error or "Tool call refused."
            raise ToolRateLimited(name, text, retry_after_seconds=result.retry_after_seconds)
        return _stamped(_said(result), result, name, seconds=machine_clock.monotonic() - began_at)

    def _caller_of(self, call: ToolCall, context: ToolContext) -> Caller:
        if self._caller is not None:
            return self._caller(context)
        return Caller(user_id=context.user or None, allowed_modules=frozenset({call.tool_name.partition(".")[0]}))


def _completed(context: ToolContext, tag: Tag) -> ToolContext:
    """Return the context with the groups of its argument, if it was made without them."""
    if context.groups:
        return context
    line = tag.pattern.prefix + b" " + context.raw_arg.encode()
    match = tag.pattern.match(line, 0, len(line))
    is_whole = match is not None and (match.start, match.end) == (0, len(line))
    if match is not None and is_whole:
        return context.model_copy(update={"groups": match.groups})
    names = tag.tool.arg_groups
    # What its pattern does not know is for a function to judge, if it is all that it takes.
    is_all = len(names) == 1 and tag.handler.tool is None
    return context.model_copy(update={"groups": {names[0]: context.raw_arg}}) if is_all else context


def _call_of(tag: Tag, context: ToolContext) -> ToolCall:
    if tag.handler.tool is not None:
        arguments: dict[str, Any] = {name: text for name, text in context.groups.items() if text}
        return ToolCall(tool_name=tag.handler.tool, arguments=arguments)
    # All else travels separately from the arguments, which a model can write as well.
    return ToolCall(tool_name=f"{LOCAL}.{tag.tool.name}", arguments=dict(context.groups))


def _said(result: ToolResult) -> TagResult:
    """Return the handler's own `TagResult`, if it gave one; otherwise one made of the call's result."""
    value = result.result
    if isinstance(value, dict) and "message" in value and value.keys() <= TagResult.model_fields.keys():
        try:
            said = TagResult.model_validate({"success": True, **value})
            return said.model_copy(update={"success": said.success and result.success})
        except ValidationError:
            pass
    if not result.success:
        return TagResult(success=False, message=result.error)
    if value is None or isinstance(value, str):
        return TagResult(success=True, message=value)
    return TagResult(success=True, message=json.dumps(value, ensure_ascii=False))


def _stamped(said: TagResult, result: ToolResult, name: str, *, seconds: float) -> TagResult:
    seen = result.audit
    milliseconds = seconds * 1000 if seen.duration_ms is None else seen.duration_ms
    ended_at = datetime.fromtimestamp(seen.ts, UTC) if seen.call_id else fleet_clock.utc_now()
    stamps = {"duration_ms": int(milliseconds), "tool": name, "ts": ended_at.isoformat()}
    if seen.call_id:
        stamps["call_id"] = seen.call_id
    return said.model_copy(update={"audit": {**said.audit, **stamps}})
