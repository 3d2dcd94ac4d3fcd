"""Writes the page of all error codes: what each means for a program, a model and a person."""

import re
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
_ROW = re.compile(r"^\| `(?P<code>\w+)` \| (?P<person>[^|]+) \|$", re.MULTILINE)
_MEANINGS: Final[dict[ErrorCode, str]] = {
    "invalid_tool_name": "The name has not the form `module.tool`.",
    "unknown_module": "The fleet has no module of this name.",
    "unknown_tool": "The module offers no tool of this name.",
    "version_mismatch": "The call names a version of the tool, and another one is in effect.",
    "invalid_arguments": "The arguments are not what the tool's schema takes, or too large.",
    "permission_denied": "The caller may not use the tool, nobody may, or the call's signature is missing or wrong.",
    "rate_limited": "A limit is used up: the tool's cooldown or daily limit, or the budget of its cost class.",
    "blocked_by_gate": "The agent's gate has not approved the call.",
    "approval_required": "A person has to approve the call first.",
    "approval_denied": "A person was asked to approve the call, and has declined.",
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
    "conflict": "The idempotency key stands for a call with other arguments, another tool or another version.",
    "fleet_unavailable": "Redis, or the broker, could not be reached in time, is full, or lacks its replicas.",
    "internal": "Something in the fleet itself is wrong, or two workers have died with the call in their hands.",
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


def error_codes_page(troubleshooting: str) -> str:
    """Return the page; what a person does stands in the page on troubles. Raises KeyError for a missing code."""
    rows = {row["code"]: row for row in _ROW.finditer(troubleshooting)}
    codes: tuple[ErrorCode, ...] = get_args(ErrorCode)
    return wrapped("\n".join([_HEAD, *(_entry(code, rows[code]) for code in codes)]))


def _entry(code: ErrorCode, row: re.Match[str]) -> str:
    person = row["person"].replace("](#", "](../troubleshooting.md#")
    lines = {"It means": _MEANINGS[code], **_told(code), "A person does": person}
    return "\n".join([f"## `{code}`\n", *(f"- **{what}:** {text}" for what, text in lines.items()), ""])


def _told(code: ErrorCode) -> dict[str, str]:
    """The hints of all standings that such a result can have, by what they are told for."""
    told = dict[str, str]()
    for state, may_repeat in _STANDINGS[code]:
        result = ToolResult.failed("a.b", code, "", effect_state=state, retryable=may_repeat)
        about = f"`{state}`, `retryable`" if may_repeat else f"`{state}`"
        told[f"A model is told ({about})"] = str(hint_for(result))
    return told
