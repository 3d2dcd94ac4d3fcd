"""Describes a tool call of a framework: its key, its user, and its conversation."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.calls import Spoken
from toolfleet_registry.formats import as_spoken
from toolfleet_registry.formats.dialects import near_names
from toolfleet_tasks.client.progress_listener import OnProgress

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class FrameworkCall:
    """One tool call as a framework has it: the tool, as its model was shown it, and the framework's own ids.

    `arguments` may be anything: they are judged here, once. `seconds`: by when the run wants an end, `None` for no wish.
    """

    tool: ToolDefinition
    name: str
    arguments: Any
    caller: Caller
    run_id: str | None
    call_id: str | None
    conversation: Conversation | None = None
    seconds: float | None = None
    on_progress: OnProgress | None = None

    @property
    def user_id(self) -> str | None:
        """The user of the call."""
        return self.caller.user_id

    @property
    def key(self) -> str | None:
        """The key by which the call is found again: see `call_key`."""
        return call_key(self.run_id, self.call_id, self.tool.name, self.arguments)

    def as_call(self) -> ToolCall:
        """The call with its key; its errors are in the names that the model was shown."""
        spoken = Spoken("mcp", self.name, self.tool)
        return ToolCall(tool_name=self.tool.name, arguments=self.arguments, idempotency_key=self.key, spoken=spoken)


def call_key(run_id: str | None, call_id: str | None, tool_name: str, arguments: Any) -> str | None:
    """Return the idempotency key of one tool call: 64 hex digits. `None` if the framework has given it no id.

    The ids alone are not enough: models repeat a call's id within one run, with other arguments. `run_id` separates
    runs whose model restarts its count; `None` if call ids are unique by themselves.
    """
    if not call_id:
        return None
    try:
        text = json.dumps([run_id, call_id, tool_name, arguments], sort_keys=True, separators=(",", ":"), default=str)
    except (RecursionError, TypeError, ValueError):  # arguments that no call can have, and that are refused
        text = json.dumps([run_id, call_id, tool_name])
    return hashlib.sha256(text.encode()).hexdigest()


def caller_of(caller: Caller | Callable[[C], Caller], context: C) -> Caller:
    """Return the run's caller: a fixed one, or the result of a function of the run's context."""
    return caller if isinstance(caller, Caller) else caller(context)


def conversation_of(
    conversation: Conversation | Callable[[C], Conversation | None] | None, context: C
) -> Conversation | None:
    """Return the conversation of the run's calls, likewise."""
    return conversation(context) if callable(conversation) else conversation


def in_run(conversation: Conversation | None, run_id: str | None) -> Conversation | None:
    """The same with the framework's own run, where it says none: what a profile's `run_limit` counts by."""
    if run_id is None or (conversation is not None and conversation.run_id is not None):
        return conversation
    return (conversation or Conversation()).model_copy(update={"run_id": run_id})


def no_such_tool(name: str, tools: Iterable[ToolDefinition]) -> ToolResult:
    """The end of a call of what its model was not offered: with up to three names that it may have meant."""
    refusal = ToolResult.refused(name.encode("utf-8", "replace").decode(), "unknown_tool", "There is no such tool.")
    return as_spoken(refusal, Spoken("mcp", name, None, near_names(name, tools, "mcp")))
