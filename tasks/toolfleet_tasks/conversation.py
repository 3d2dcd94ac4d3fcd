"""What a module is told about the conversation that a call comes from."""

from typing import Any

from toolfleet_registry.contracts import Conversation

_PLATFORM = ("platform", "platform_channel_id", "platform_thread_id")
_RESUMED_BY = "scheduler.add_job"  # the one tool that must wake the right conversation later


def told_by(conversation: Conversation | None, tool_name: str, context_modules: frozenset[str]) -> dict[str, Any]:
    """The conversation's fields that this tool's module is told."""
    fields = _fields_for(tool_name, context_modules) if conversation else None
    return conversation.model_dump(include=fields, exclude_none=True) if conversation and fields else {}


def with_conversation(
    arguments: dict[str, Any], tool_name: str, conversation: Conversation | None, context_modules: frozenset[str]
) -> dict[str, Any]:
    """`arguments` with the conversation's fields where they belong.

    They replace what the model wrote under these names, and without a conversation that is dropped: where a message
    is sent to, and which conversation wakes up, is never for a model to say.
    """
    fields = _fields_for(tool_name, context_modules)
    if not fields:
        return arguments
    kept = {key: value for key, value in arguments.items() if key not in fields}
    return kept | told_by(conversation, tool_name, context_modules)


def _fields_for(tool_name: str, context_modules: frozenset[str]) -> set[str]:
    fields = set[str]()
    if tool_name.partition(".")[0] in context_modules:
        fields.update(_PLATFORM)
    if tool_name == _RESUMED_BY:
        fields.add("conversation_id")
    return fields
