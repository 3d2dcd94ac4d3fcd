"""Writes the page of all error codes: what each means for a program, a model and a person."""

from typing import Final, get_args

from docsite.wrapping import wrapped
from toolfleet_registry.contracts.calls import EffectState, ErrorCode, ToolResult
from toolfleet_registry.policy.hints import hint_for

_HEAD = """# Error codes

A result that is no success has one of these codes in `error_code`. Beside it stand `effect_state` (whether something
has happened: `none`, `done` or `unknown`), `retryable` (whether the same call may be made again), perhaps
`retry_after_seconds` (when), and `hint` (the sentence for the model). The error says what went wrong. Whether something
has happened, and what to do next, only the hint says.
"""
_MEANINGS: Final[dict[ErrorCode, str]] = {
    "invalid_tool_name": "The name has not the form `module.tool`.",
    "unknown_module": "The fleet has no module of this name.",
    "unknown_tool": "The module offers no tool of this name.",
    "version_mismatch": "The call names a version of the tool, and another one is in effect.",
    "invalid_arguments": "The arguments are not what the tool's schema takes, or too large.",
    "permission_denied": "The caller may not use the tool, nobody may, or the call's signature is missing or wrong.",
    "rate_limited": "A limit is used up: the tool's cooldown or daily limit, the budget of its cost class, or a limit of the agent's profile.",
    "blocked_by_gate": "The agent's gate has not approved the call.",
    "approval_required": "A person has to approve the call first.",
    "approval_denied": "A person has declined the call, nobody has approved it in time, or it is not the call that was approved.",
    "busy": "There is no room: a queue is full or draining, no worker serves the module, or the module says so itself.",
    "module_unreachable": "No request has reached the module: it is away, or the breaker keeps calls from it.",
    "module_error": "The module has answered that it failed, or the connection was lost before it answered.",
    "invalid_response": "The module has sent no valid reply, or a result that the tool's own schema does not allow.",
    "result_too_large": "The reply has more bytes than are allowed.",
    "result_dropped": "The call is a repeat. Its first result was had, and its text is no longer kept.",
    "timed_out": "The tool's limit has passed, or the call's deadline after a worker had begun the call.",
    "expired": "The deadline has passed before any worker began the call.",
    "cancelled": "The call was cancelled.",
    "outcome_unknown": "The call was begun, and nobody has seen its end.",
    "conflict": "The idempotency key stands for a call with other arguments, another tool or another version; or the call was made by the run of a tool for whose [turn](../guides/turns.md) it would wait.",
    "fleet_unavailable": "Redis, or the broker, could not be reached in time, is full, or lacks its replicas.",
    "internal": "Something in the fleet itself is wrong, or two workers have died with the call in their hands.",
}

_PERSON_DOES: Final[dict[ErrorCode, str]] = {
    "invalid_tool_name": "Nothing, if a model invented it. Otherwise the agent should offer tools under the names that `convert` gives them.",
    "unknown_module": "`toolfleet modules list`: was the module never added, or is this another fleet?",
    "unknown_tool": "`toolfleet modules list`, `tools list --closed`: the tool is gone, or its module was never reached.",
    "version_mismatch": "`toolfleet tools show --versions` shows which version is in effect. Call that one (`tool_version`), or have the module offer, or `tools rollback` to, the intended one.",
    "invalid_arguments": "`toolfleet tools show`. If it happens repeatedly, write better descriptions.",
    "permission_denied": "[Find the reason](../troubleshooting.md#permission-denied).",
    "rate_limited": "Wait, or raise the tool's `cooldown_seconds` or `daily_limit`, or `TOOLFLEET_COST_BUDGETS`.",
    "blocked_by_gate": "Ask the author of the agent's gate; the error is its reason.",
    "approval_required": "Decide in the console, or by `toolfleet approvals`: `show ID`, then `approve` or `reject`. The id is the call's.",
    "approval_denied": "Nothing, if a person has declined it. Otherwise the error says what was missing; have the call made again.",
    "busy": "`toolfleet status`: is there a worker for the lane, and which queue is long? Start workers, or raise the bound that the error names.",
    "module_unreachable": "`toolfleet modules list`, and the module's log.",
    "module_error": "Read the module's log; the error quotes what it answered.",
    "invalid_response": "Tell the module's author; the error says what is wrong with the reply.",
    "result_too_large": "Have the tool answer with less, or raise `TOOLFLEET_MAX_REPLY_BYTES`.",
    "result_dropped": "Nothing: the call was made before, and its result was delivered. An agent that needs it twice keeps it.",
    "timed_out": "[Find out why it is slow](../troubleshooting.md#an-execution-fails).",
    "expired": "`toolfleet status`: calls wait longer than they may. Start workers, or give calls more time.",
    "cancelled": "Nothing: the caller or an operator has cancelled it.",
    "outcome_unknown": "`toolfleet dead-letters show`: find out whether it has happened, then `replay` or `drop`.",
    "conflict": "Fix the agent: a key stands for one intention. A tool must not call one that waits for its turn.",
    "fleet_unavailable": "Is Redis there, and RabbitMQ, if that is the broker? `toolfleet config` says which are meant.",
    "internal": "Search the logs of workers and of the agent for the call's id: there is a traceback.",
}

_NONE: Final[tuple[EffectState, bool]] = ("none", False)
_AGAIN: Final[tuple[EffectState, bool]] = ("none", True)
_PERHAPS: Final[tuple[tuple[EffectState, bool], ...]] = (("unknown", False), ("unknown", True))
_DONE: Final[tuple[tuple[EffectState, bool], ...]] = (("done", False), ("done", True))
_STANDINGS: Final[dict[ErrorCode, tuple[tuple[EffectState, bool], ...]]] = {
    **dict.fromkeys(get_args(ErrorCode), (_NONE,)),
    **dict.fromkeys(
        ("rate_limited", "busy", "module_unreachable", "expired", "fleet_unavailable", "internal"), (_NONE, _AGAIN)
    ),
    "module_error": (_AGAIN, *_PERHAPS, *_DONE),
    "invalid_response": (*_PERHAPS, *_DONE),
    "result_too_large": (*_PERHAPS, *_DONE),
    "result_dropped": _DONE,
    "timed_out": (_AGAIN, *_PERHAPS),
    "cancelled": (_NONE, *_PERHAPS),
    "outcome_unknown": _PERHAPS,
}
"""The effects that a result with each code can have, and whether the call may then be repeated."""


def error_codes_page() -> str:
    """Return the page. Raises KeyError for a code without a meaning or an action."""
    codes: tuple[ErrorCode, ...] = get_args(ErrorCode)
    return wrapped("\n".join([_HEAD, *map(_entry, codes)]))


def _entry(code: ErrorCode) -> str:
    lines = {"It means": _MEANINGS[code], **_told(code), "A person does": _PERSON_DOES[code]}
    return "\n".join([f"## `{code}`\n", *(f"- **{what}:** {text}" for what, text in lines.items()), ""])


def _told(code: ErrorCode) -> dict[str, str]:
    """The hints of all standings that such a result can have, by what they are told for."""
    told = dict[str, str]()
    for state, may_repeat in _STANDINGS[code]:
        result = ToolResult.failed("a.b", code, "", effect_state=state, retryable=may_repeat)
        about = f"`{state}`, `retryable`" if may_repeat else f"`{state}`"
        told[f"A model is told ({about})"] = str(hint_for(result))
    return told
