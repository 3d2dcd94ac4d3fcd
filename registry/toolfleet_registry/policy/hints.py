"""Words failures: what is wrong with a module, and what a model may do after a call that failed.

An error says what went wrong, and leaves to its hint whether something has happened, and what to do next: so the two never
contradict each other, and say nothing twice. Where an effect may have happened and a repeat could double it, no sentence
invites to one.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from toolfleet_registry.contracts import Effect, ErrorCode, ToolResult
from toolfleet_registry.contracts.attempts import UNEXPLAINED
from toolfleet_registry.contracts.limits import ExitBehavior

Why: TypeAlias = Literal["refused", "silent", "unresolved", "unready", "away", "failed"]

WORDS: Mapping[str, str] = {
    "refused": "Connection refused",  # to the letter: agents match on it
    "silent": "it does not accept connections",
    "unresolved": "host name not known",
    "unready": "it answers that it is not ready",
    "away": "no worker can connect to it",
    "failed": "it has failed too often",
}
"""Why a module is left alone; what a newer worker has noted and is not known here is `away`."""

TONES: Mapping[str, Literal["good", "odd"]] = {"ok": "good", "recovering": "odd", "failing": "odd", "stale": "odd"}
"""The tones of a module's states; all other states are bad."""

UNDECLARED_LINES = "`undeclared = true` in `tool_retry` repeats answered failures, `effects` in `[module.NAME]` says what a repeat would do"
"""The setting by which operators have tools without an effect repeated."""

CLOSED_TO_ALL = "Nothing was executed: no caller can use this tool now, so use another one, or tell the person."
"""After a refusal that does not depend on the caller: the tool is disabled, withheld or broken."""

AT_LIMIT: Mapping[ExitBehavior, str] = {
    "continue": "Nothing was executed, and this tool has no calls left: go on without it.",
    "end": "Nothing was executed, and this tool has no calls left: answer with what you have now.",
    "error": "Nothing was executed, and this tool has no calls left: the run ends here, as an error.",
}
"""After a refusal because a run or a thread has used up its calls."""
UNNAMED_RUN = (
    "Nothing was executed: the agent's program must name the run that the call belongs to: Conversation(run_id=…)."
)
UNNAMED_THREAD = "Nothing was executed: the agent's program must name the conversation that the call belongs to: Conversation(conversation_id=…)."
OWN_TURN = "Nothing was executed: the tool that made the call must do this itself, or have it done after its own end."
KILLS_WORKERS = "Nothing was executed. Do not repeat the call: it may have killed the workers that ran it. Go on without it, or tell the person."
DRAINING = (
    "Nothing was executed: the queue takes no new calls until an operator resumes it, so go on without this tool."
)
KEYS_DIFFER = (
    "Nothing was executed: the fleet's signing keys do not agree, so go on without this tool, or tell the person."
)
SAME_KEY_ONLY = (
    "It may have been executed: repeat it with the same idempotency key only, which brings the first call's result, "
    "for a repeat under another key, or without one, could do it twice."
)

_TOO_LARGE: Final = "can be sent."  # how `arguments.size_fault` ends
_LESS = "Ask for less, such as a part of it; repeating the call does no harm."
_OTHER_NAME = "Nothing was executed: use a name from the list of tools, as it is written there."
_CANCELLED = "Nothing was executed, as the call was cancelled: call it again only if the person still wants it."

_HINTS: Final[Mapping[tuple[ErrorCode | None, str], str]] = {
    (None, "none"): "Nothing was executed, and the same call would fail the same way: change it, or use another tool.",
    (None, "none again"): "Nothing was executed: the call may be repeated as it is{after}.",
    (None, "done"): (
        "Its effect has happened, so do not repeat it: check what it did with a tool that only reads, or tell the person."
    ),
    (None, "done again"): (
        "Its effect has happened, and a repeat adds nothing to it: the call may be repeated{after} for its answer."
    ),
    (None, "unknown"): (
        "It may have been executed: find out with a tool that only reads, or ask the person, before repeating it, "
        "for a repeat could do it twice."
    ),
    (None, "unknown again"): (
        "It may have been executed, but a repeat does no harm: the call may be repeated as it is{after}."
    ),
    (None, "unknown stated"): (
        "The tool says that it failed: correct the call, but if it changes something, check with a tool that only reads "
        "before you repeat it."
    ),
    ("invalid_tool_name", "none"): _OTHER_NAME,
    ("unknown_module", "none"): _OTHER_NAME,
    ("unknown_tool", "none"): _OTHER_NAME,
    ("version_mismatch", "none"): (
        "Nothing was executed: the tool has changed, so read its current description before you call it again."
    ),
    ("invalid_arguments", "none"): (
        "Nothing was executed: correct the arguments, as the tool's schema has them, and call it again."
    ),
    ("invalid_arguments", "none large"): (
        "Nothing was executed: send less, such as a smaller file or its address: base64 takes a third more than a file's "
        "bytes; an operator can allow more with TOOLFLEET_MAX_ARGUMENTS_BYTES."
    ),
    ("permission_denied", "none"): (
        "Nothing was executed: use another tool, or tell the person that they may not use this one."
    ),
    ("rate_limited", "none"): (
        "Nothing was executed: the limit for this tool is reached, so go on without it, or tell the person."
    ),
    ("rate_limited", "none again"): (
        "Nothing was executed: the call may be repeated as it is {free}; until then go on without it, or tell the person."
    ),
    ("blocked_by_gate", "none"): (
        "Nothing was executed: it is not allowed here, so use another way, or tell the person."
    ),
    ("approval_required", "none"): "Nothing was executed: wait for the decision about it.",
    ("approval_denied", "none"): (
        "Nothing was executed: it has not been approved, so ask the person what they want instead."
    ),
    ("busy", "none"): ("Nothing was executed: there is no room for it now, so go on without it, or tell the person."),
    ("module_unreachable", "none"): (
        "Nothing was executed: go on without this tool, or tell the person that it cannot be reached."
    ),
    ("module_error", "none stated"): (
        "Nothing was executed: correct the call by what the error says; it may be repeated{after}."
    ),
    ("module_error", "none unexplained"): (
        "Nothing was executed: repeat the call as it is{after}, or tell the person."
    ),
    ("module_error", "read stated"): (
        "It only reads, so nothing has changed: correct the call by what the error says; it may be repeated{after}."
    ),
    ("module_error", "read unexplained"): (
        "It only reads, so nothing has changed: repeat the call as it is{after}, or tell the person."
    ),
    ("result_too_large", "none"): "Nothing was executed: ask for less, such as a part of it.",
    ("result_too_large", "none again"): _LESS,  # the same call would have the same result
    ("result_too_large", "done again"): _LESS,
    ("result_too_large", "unknown again"): _LESS,
    ("result_dropped", "done"): (
        "It was done, so do not repeat it: use the answer that you had then, or check with a tool that only reads, "
        "or ask the person."
    ),
    ("result_dropped", "done again"): (
        "It was done, and a repeat does no harm: under another idempotency key it may be called for its answer."
    ),
    ("expired", "none"): (
        "Nothing was executed, as its time was over: call it again with more time, if it is still wanted."
    ),
    ("cancelled", "none"): _CANCELLED,
    ("cancelled", "none again"): _CANCELLED,  # a call cancelled before it started is no longer wanted
    ("conflict", "none"): (
        "Nothing was executed: other arguments need another idempotency key, and this key needs its first arguments."
    ),
    ("fleet_unavailable", "none"): (
        "Nothing was executed: the fleet cannot be reached, so go on without this tool, or tell the person."
    ),
    ("fleet_unavailable", "unknown again"): "It may have been executed: send it again with the same idempotency key.",
    ("internal", "none"): (
        "Nothing was executed: the fault is the fleet's, so go on without this tool, or tell the person."
    ),
}


def words_for(why: str) -> str:
    """Return why a module is left alone, in words."""
    return WORDS.get(why, WORDS["away"])


def hint_for(result: ToolResult, effect: Effect | None = None, *, is_stated: bool = False) -> str | None:
    """Return a sentence for a failed result, `None` for a success. The caller keeps a hint that a result already has.

    `effect`: the tool's, where it is known. `is_stated`: the tool itself has answered that it failed, and nothing else is known to be on its way.
    """
    if result.success:
        return None
    code, error = result.error_code, result.error or ""
    standing = f"{result.effect_state} again" if result.retryable else result.effect_state
    is_unexplained = error.endswith(UNEXPLAINED)
    if code == "module_error" and standing == "none again":  # the tool itself says why, unless it has raised
        standing = f"{'read' if effect == 'read' else 'none'} {'unexplained' if is_unexplained else 'stated'}"
    elif is_stated and standing == "unknown" and not is_unexplained:
        standing = "unknown stated"
    elif code == "invalid_arguments" and error.endswith(_TOO_LARGE) and standing == "none":
        standing = "none large"
    sentence = _HINTS.get((code, standing)) or _HINTS[None, standing]
    seconds = result.retry_after_seconds
    return sentence.format(after=f" after {math.ceil(seconds)} s" if seconds else "", free=_when_free(seconds))


def _when_free(seconds: float | None) -> str:
    """Return the delay as text, `later` if unknown: a limit may be free again only after hours, too long to wait."""
    return "later" if seconds is None else f"after {math.ceil(seconds)} s"


def unrepeated(hint: str | None, tool_name: str, *, is_answered: bool) -> str:
    """Add to a hint why a profile's retries were not made of a tool without an effect, and which line would have them made."""
    module, _, method = tool_name.partition(".")
    line = (
        "`undeclared = true` in the agent's `tool_retry`"
        if is_answered
        else f'`effects = {{{method} = "read"}}` in `[module.{module}]`, if that is so,'
    )
    return f"{hint or ''} It was not tried again, as it declares no effect: {line} would change that.".lstrip()
