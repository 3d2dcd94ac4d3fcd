"""Chooses what a module gets to know of the conversation that a call comes from."""

from typing import Any

from toolfleet_registry.contracts import Conversation, ToolCall

_NOTHING = frozenset[str]()
_PLATFORM = frozenset({"platform", "platform_channel_id", "platform_thread_id"})
_RESUMES = frozenset({"conversation_id"})
_RESUMED_BY = "scheduler.add_job"  # the one tool that must wake the right conversation later


def conversation_for(
    conversation: Conversation | None, tool_name: str, context_modules: frozenset[str]
) -> dict[str, Any]:
    """The conversation's fields that this tool's module is told."""
    fields = _fields_for(tool_name, context_modules) if conversation else None
    return conversation.model_dump(include=set(fields), exclude_none=True) if conversation and fields else {}


def models_part(call: ToolCall, context_modules: frozenset[str]) -> ToolCall:
    """The call without what the model wrote under the names of a conversation's fields that this tool's module is told.

    Where a message is sent to, and which conversation wakes up, is never for a model to say, also outside of one.
    """
    fields = _fields_for(call.tool_name, context_modules)
    if not fields or not isinstance(call.arguments, dict) or fields.isdisjoint(call.arguments):
        return call
    kept = {key: value for key, value in call.arguments.items() if key not in fields}
    return call.model_copy(update={"arguments": kept})


def _fields_for(tool_name: str, context_modules: frozenset[str]) -> frozenset[str]:
    if tool_name == _RESUMED_BY:
        return _RESUMES | (_PLATFORM if tool_name.partition(".")[0] in context_modules else _NOTHING)
    return _PLATFORM if tool_name.partition(".")[0] in context_modules else _NOTHING
