"""Reads from a tool's manifest what a repeat of a call would do, in several languages."""

from toolfleet_registry.contracts import Effect, ToolAnnotations, ToolDefinition


def effect_of(tool: ToolDefinition) -> Effect | None:
    """Return the tool's effect; `None` if its manifest says nothing about it.

    The first of these rules that fits:
    1. `effect` is there: that.
    2. Some field says that a repeat does more (`idempotent` is false, or `idempotentHint` is, of a tool that is not
       read-only), or calls a reader destructive: `once`. Of two contradicting fields the more careful one counts.
    3. `readOnlyHint` is true: `read`.
    4. `idempotent` or `idempotentHint` is true: `idempotent`, also of a tool that is destructive, such as a deletion.
    5. `destructiveHint` is true: `once`.

    A hint that is absent says nothing, despite the protocol's defaults: it may have been forgotten.
    """
    if tool.effect is not None:
        return tool.effect
    hints = tool.annotations or ToolAnnotations()
    if _is_doubtful(tool, hints):
        return "once"
    if hints.readOnlyHint:
        return "read"
    if tool.idempotent or hints.idempotentHint:
        return "idempotent"
    return "once" if hints.destructiveHint else None


def _is_doubtful(tool: ToolDefinition, hints: ToolAnnotations) -> bool:
    if tool.idempotent is False:
        return True
    # The protocol gives the other two hints no meaning where this one is true. That search results change from day to
    # day makes many a reader "not idempotent"; but a reader is never called destructive on purpose.
    return bool(hints.destructiveHint) if hints.readOnlyHint else hints.idempotentHint is False
