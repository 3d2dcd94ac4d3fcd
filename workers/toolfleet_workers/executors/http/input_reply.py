"""Reads in a module's reply that it asks something before it goes on with the call."""

from typing import Any

from pydantic import ConfigDict, ValidationInfo, field_validator, model_validator

from toolfleet_registry.contracts import EffectState, ModuleMessage, PublishedCall, ToolResult
from toolfleet_registry.contracts.inputs import MOST_ROUNDS, check_requests, requests_of
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.outcomes import Attempt, Outcome, Question


class InputReply(ModuleMessage):
    """What a module asks. Without a plain `effect_state` nobody knows what the call has done by now."""

    model_config = ConfigDict(strict=True, defer_build=DEFERS_BUILD)

    tool_name: str
    input_required: dict[str, Any]
    effect_state: EffectState = "unknown"

    @field_validator("effect_state", mode="before")
    @classmethod
    def _believe_known_states(cls, value: Any) -> Any:
        return value if value in ("none", "done", "unknown") else "unknown"

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "InputReply":
        if self.tool_name != info.context:
            raise ValueError("it is for another tool")
        check_requests(self.input_required.get("requests"), self.input_required.get("state", ""))
        return self


def is_question(document: object) -> bool:
    """Return whether a reply's JSON asks something, however malformed."""
    return isinstance(document, dict) and "input_required" in document and "success" not in document


def judge_question(call: PublishedCall, document: object) -> Attempt:
    """Return the attempt for such a reply. Raises `ValidationError` if it is invalid."""
    reply = InputReply.model_validate(document, context=call.tool_name)
    return asked(call, reply.input_required, reply.effect_state)


def may_ask(call: PublishedCall) -> bool:
    """Return whether the caller answers one more question."""
    return call.takes_input and (call.inputs is None or call.inputs.round < MOST_ROUNDS)


def asked(call: PublishedCall, question: dict[str, Any], state: EffectState) -> Attempt:
    """Return an attempt whose module asks this, which is checked.

    If the caller cannot answer, or it has asked too often, the call has failed.
    """
    rounds = 0 if call.inputs is None else call.inputs.round
    if not call.takes_input:
        text = "Tool execution error: the tool asks for more input, and whoever called it cannot be asked"
    elif rounds >= MOST_ROUNDS:
        text = f"Tool execution error: the tool has asked for more input {rounds} times, and that is all it may"
    else:
        text = "Tool execution error: the tool asks for more input"
    result = ToolResult.failed(call.tool_name, "module_error", text, effect_state=state)
    if not may_ask(call):
        return Attempt(Outcome.PERMANENT, result)
    asked_for = Question(requests_of(question["requests"]), question.get("state", ""), state)
    return Attempt(Outcome.UNKNOWN, result, question=asked_for)
