"""Tells a model what it may do after a call that failed: one sentence, from what the result says and nothing else.

Where an effect may have happened and a repeat could double it, no sentence invites to one.
"""

import math
from collections.abc import Mapping

from toolfleet_registry.contracts import Effect, ErrorCode, ToolResult
from toolfleet_registry.contracts.terms.call_terms import ExitBehavior


def hint_for(result: ToolResult, effect: Effect | None = None, *, is_stated: bool = False) -> str | None:
    """One sentence for a failed result, `None` for a success. A hint that a result has already is for the caller to keep.

    `effect`: the tool's, where it is known. `is_stated`: the tool itself has answered that it failed, and nothing else is known to be on its way.
    """
    if result.success:
        return None
    # What was taken back before it began nobody wants any more.
    if result.retryable and not (result.error_code == "cancelled" and result.effect_state == "none"):
        return _for_repeatable(result, effect)
    if result.error_code == "invalid_arguments" and (result.error or "").endswith(_TOO_LARGE):
        return _SEND_LESS
    if result.effect_state == "none":
        return _BY_CODE.get(result.error_code, _REFUSED) if result.error_code else _REFUSED
    if result.effect_state == "done":
        return _DONE
    return _SAYS_FAILED if is_stated else _PERHAPS_DONE


def _for_repeatable(result: ToolResult, effect: Effect | None) -> str:
    if result.error_code == "rate_limited" and result.effect_state == "none":
        return _when_free(result.retry_after_seconds)
    if result.error_code == "result_too_large":  # the same call would have the same result
        return "Ask for less, such as a part of it; repeating the call does no harm."
    after = f" after {math.ceil(result.retry_after_seconds)} s" if result.retry_after_seconds else ""
    if result.error_code == "module_error" and result.effect_state == "none":  # the tool itself says why
        nothing = "It only reads, so nothing has changed" if effect == "read" else "Nothing was executed"
        return f"{nothing}: correct the call by what the error says; it may be repeated{after}."
    return {
        "none": f"Nothing was executed: the call may be repeated as it is{after}.",
        "done": f"Its effect has happened, and a repeat adds nothing to it: the call may be repeated{after} for its answer.",
        "unknown": f"It may have been executed, but a repeat does no harm: the call may be repeated as it is{after}.",
    }[result.effect_state]


def _when_free(seconds: float | None) -> str:
    """Nobody waits for tomorrow: a limit may be free again after hours."""
    when = "later" if seconds is None else f"after {math.ceil(seconds)} s"
    return f"Nothing was executed: the call may be repeated as it is {when}; until then go on without it, or tell the person."


UNDECLARED_LINES = "`undeclared = true` in `tool_retry` repeats answered failures, `effects` in `[module.NAME]` says what a repeat would do"
"""Where operators have a tool without an effect repeated."""


def unrepeated(hint: str | None, tool_name: str, *, is_answered: bool) -> str:
    """Add to a hint why a profile's retries were not made of a tool without an effect, and which line would have them made."""
    module, _, method = tool_name.partition(".")
    line = (
        "`undeclared = true` in the agent's `tool_retry`"
        if is_answered
        else f'`effects = {{{method} = "read"}}` in `[module.{module}]`, if that is so,'
    )
    return f"{hint or ''} It was not tried again, as it declares no effect: {line} would change that.".lstrip()


FOR_NOBODY = "Nothing was executed: nobody can use this tool now, so use another one, or tell the person."
"""After a refusal that has nothing to do with who asked: the tool is disabled, withheld or broken."""

AT_LIMIT: Mapping[ExitBehavior, str] = {
    "continue": "Nothing was executed, and this tool has no calls left: go on without it.",
    "end": "Nothing was executed, and this tool has no calls left: answer with what you have now.",
    "error": "Nothing was executed, and this tool has no calls left: the run ends here, as an error.",
}
"""After a refusal by what a run or a thread may call in all."""
UNNAMED_RUN = "Nothing was executed: the agent's program must say which run the call is of: Conversation(run_id=…)."
UNNAMED_THREAD = "Nothing was executed: the agent's program must say which conversation the call is of: Conversation(conversation_id=…)."

_TOO_LARGE = "can be sent."  # how `arguments.size_fault` ends
_SEND_LESS = (
    "Nothing was executed: send less, such as a smaller file or where it lies, as base64 takes a third more than a file's "
    "bytes; an operator may allow more with TOOLFLEET_MAX_ARGUMENTS_BYTES."
)
_SAYS_FAILED = (
    "The tool says that it failed: correct the call, but if it changes something, look with a tool that only reads "
    "before you repeat it."
)
_PERHAPS_DONE = (
    "It may have been executed: find out with a tool that only reads, or ask the person, before repeating it, "
    "for a repeat could do it twice."
)
_DONE = (
    "Its effect has happened, so do not repeat it: look at what it did with a tool that only reads, or tell the person."
)
_REFUSED = "Nothing was executed, and the same call would fail the same way: change it, or use another tool."
_OTHER_NAME = "Nothing was executed: use a name from the list of tools, as it is written there."

_BY_CODE: dict[ErrorCode, str] = {
    "invalid_tool_name": _OTHER_NAME,
    "unknown_module": _OTHER_NAME,
    "unknown_tool": _OTHER_NAME,
    "version_mismatch": "Nothing was executed: the tool has changed, so look at how it is described now before you call it anew.",
    "invalid_arguments": "Nothing was executed: correct the arguments, as the tool's schema has them, and call it anew.",
    "permission_denied": "Nothing was executed: use another tool, or tell the person that this one is not allowed to them.",
    "rate_limited": "Nothing was executed: the limit for this tool is reached, so go on without it, or tell the person.",
    "blocked_by_gate": "Nothing was executed: it is not allowed here, so use another way, or tell the person.",
    "approval_required": "Nothing was executed: a person has to approve it first, so wait for the answer.",
    "approval_denied": "Nothing was executed: a person has declined it, so ask them what they want instead.",
    "busy": "Nothing was executed: there is no room for it now, so go on without it, or tell the person.",
    "module_unreachable": "Nothing was executed: go on without this tool, or tell the person that it is away.",
    "result_too_large": "Nothing was executed: ask for less, such as a part of it.",
    "expired": "Nothing was executed, as its time was over: call it anew with more time, if it is still wanted.",
    "cancelled": "Nothing was executed, as it was taken back: call it anew only if the person wants it after all.",
    "conflict": "Nothing was executed: other arguments need another idempotency key, and this key needs its first arguments.",
    "fleet_unavailable": "Nothing was executed: the fleet is away, so go on without this tool, or tell the person.",
    "internal": "Nothing was executed: the fault is the fleet's, so go on without this tool, or tell the person.",
}
