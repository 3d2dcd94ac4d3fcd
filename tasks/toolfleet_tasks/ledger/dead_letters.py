"""Stores dead letters: calls whose outcome is unknown, or that failed inside the fleet, in Redis for an operator.

The ledger writes them when it ends a call (`lua/dead_letters.lua`); `dead_letters` lists, replays and drops
them.
"""

import json
from typing import Any

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter
from toolfleet_registry.policy.redaction import OUR_WORDS, REDACTED, redacted, scrubbed
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.scripts import script

BURY_ENDED = script("dead_letters/bury_ended")

NOT_KEPT = "[not kept]"
"""What stands in the place of an argument that is too large to be kept, or was no JSON."""

_DEAD_CODES = frozenset({"outcome_unknown", "internal"})
_MOST_BYTES = 64_000  # of a letter's arguments as JSON: all letters together must leave Redis room for the fleet
_LONGEST_TEXT = 2_000  # characters of a reason or a key


def is_dead(call: PublishedCall, result: ToolResult, *, is_unseen: bool, is_exhausted: bool) -> bool:
    """Return whether an operator must learn of a call that ended so: its outcome is unknown, or it failed inside the fleet, or twice.

    `is_unseen`: the end of its last attempt is unknown; `is_exhausted`: there were two or more, of which the last is
    not only a repeat of an answered one. A `read` tool that has answered that it failed leaves nothing to find out.
    """
    if result.success:
        return False
    has_answered = call.effect == "read" and result.effect_state == "none" and result.error_code == "module_error"
    is_unknown = is_unseen and result.effect_state == "unknown" and call.effect not in {"read", "idempotent"}
    return is_unknown or (is_exhausted and not has_answered) or result.error_code in _DEAD_CODES


def reason_of(call: PublishedCall, result: ToolResult) -> str:
    """Return why a call has failed, in a text that may be kept, at most 2,000 characters.

    Without sensitive arguments, and without a module's messages if results are sensitive.
    """
    if call.hides_results and result.error_code not in OUR_WORDS:
        return REDACTED
    return scrubbed(result.error or "", call.arguments, redacted(call.arguments, call.sensitive))[:_LONGEST_TEXT]


def dead_letter(
    call: PublishedCall, result: ToolResult, *, attempts: tuple[DeadAttempt, ...] = (), died_at: float
) -> str:
    """Return the letter as it is stored; `died_at` in seconds since the epoch.

    Never fails, and is never much over 64 kB.

    Without sensitive arguments; its reason is as `reason_of` says. Over 64 kB of JSON, the largest arguments are
    `NOT_KEPT`; quotes in an agent's context are kept if there is room for them.
    """
    shown = redacted(call.arguments, call.sensitive)
    kept = _within_bounds(shown)
    letter = DeadLetter(
        call_id=call.call_id,
        tool_name=call.tool_name,
        arguments=kept,
        is_redacted=_differ(kept, call.arguments),
        caller=call.caller,
        user_id=call.user_id,
        effect=call.effect,
        error_code=result.error_code or "internal",
        reason=reason_of(call, result),
        attempts=attempts,
        published_at=call.published_at,
        died_at=died_at,
        idempotency_key=call.idempotency_key and call.idempotency_key[:_LONGEST_TEXT],
        replay_of=call.replay_of,
        context=_kept_context(call, most=_MOST_BYTES - (_size(kept) or 0)),
        tool_version=call.tool_version and call.tool_version[:_LONGEST_TEXT],
        asked_by=call.asked_by,
    )
    try:
        return json_text.dump(letter)
    except (ValueError, RecursionError):  # deeper than pydantic goes
        return json_text.dump(letter.model_copy(update={"arguments": {"*": NOT_KEPT}, "is_redacted": True}))


def _within_bounds(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without values that are no JSON, and without the largest ones above `_MOST_BYTES`.

    If names alone are more, without all.
    """
    kept = {name: NOT_KEPT if _size(value) is None else value for name, value in arguments.items()}
    sizes = {name: _size(value) or 0 for name, value in kept.items()}
    total = sum(sizes.values()) + sum((_size(name) or 0) + 2 for name in kept)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total <= _MOST_BYTES:
            return kept
        kept[name] = NOT_KEPT
        total += len(NOT_KEPT) + 2 - sizes[name]
    return kept if total <= _MOST_BYTES else {"*": NOT_KEPT}


def _kept_context(call: PublishedCall, *, most: int) -> ToolContext | None:
    """Return the context: numbers always, so that a replay speaks to the same chat; texts, which may quote arguments, within `most` bytes."""
    context = call.context
    if context is None:
        return None
    if call.sensitive:
        return context.model_copy(update={"raw_arg": "", "user_message": "", "kb_context": None})
    for left_out in ({}, {"kb_context": None}, {"kb_context": None, "raw_arg": "", "user_message": ""}):
        context = context.model_copy(update=left_out)
        if (_size(context.model_dump(mode="json")) or 0) <= most:
            break
    return context


def _differ(kept: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Return whether anything was left out.

    Identical values are not compared: they may be deeper than Python can recurse.
    """
    pairs = ((kept.get(name, NOT_KEPT), value) for name, value in arguments.items())
    return any(shown is not value and shown != value for shown, value in pairs)


def _size(value: Any) -> int | None:
    """Bytes as JSON; `None` for what came as something that only Python takes for JSON."""
    try:
        return len(json.dumps(value, allow_nan=False, separators=(",", ":")))
    except (ValueError, TypeError, RecursionError):
        return None
