"""Bounds a call's message: which part of an agent's context travels with it, and which calls are too large."""

from typing import Any

from toolfleet_registry.contracts import PublishedCall, ToolCall, ToolDefinition
from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.errors import MessageTooLarge
from toolfleet_registry.policy.call_faults import fault_in_names
from toolfleet_registry.schemas.arguments import size_fault, size_of
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.eval_gate import Circumstances

_NOTHING = ToolContext(raw_arg="")

_CONTEXT_BEFORE = ToolContext.model_fields.keys() - {"user"}

_BESIDE_ARGUMENTS = 2**18  # characters: thousands of modules may be named for a caller


def context_for(tool: ToolDefinition, around: Circumstances, modules: frozenset[str]) -> ToolContext | None:
    """Return the context for the tool.

    Without the user, who travels with the call, and the groups, which are its arguments.

    `modules` are those that may have it, in addition to the fleet's own functions; a module's own declaration does not
    count.
    """
    if around.context is None or not tool.takes_context or tool.name.partition(".")[0] not in {LOCAL, *modules}:
        return None
    context = around.context.model_copy(update={"raw_arg": around.raw_arg, "user": "", "groups": {}})
    return None if context == _NOTHING else context


def size_fault_with(context: ToolContext | None, arguments: dict[str, Any], *, most: int) -> str | None:
    """Return why a call with this context is too large; `None` for at most `most` bytes of both, and for a call without one."""
    if context is None:
        return None
    size = size_of(arguments) + size_of(context.model_dump(mode="json", exclude_defaults=True))
    return None if size <= most else f"Arguments and context have {size} bytes as JSON; at most {most} can be sent."


def as_before(call: ToolCall, tool: ToolDefinition, around: Circumstances) -> ToolCall:
    """A tag's call as workers of the version before take it, which have the context among the arguments, and say so."""
    if around.tag is None or around.context is None or tool.takes_context:
        return call
    properties = (tool.input_schema or {}).get("properties")
    if not isinstance(properties, dict) or not properties.keys() >= _CONTEXT_BEFORE:
        return call
    arguments = around.context.model_dump(mode="json", exclude={"user"}, exclude_defaults=True)
    return call.model_copy(update={"arguments": arguments})


def opened(message: object, app: Any, *, task_id: str) -> PublishedCall:
    """Open the call that was sealed for `task_id`, as `Seal.open` does; `app` has the seal, and the settings.

    Raises also `MessageTooLarge`, before a message is parsed that is too long.
    """
    settings: Settings = app.settings
    most = settings.max_arguments_bytes
    if isinstance(message, str) and len(message) > most + _BESIDE_ARGUMENTS:
        raise MessageTooLarge(f"Arguments have more than the {most} bytes as JSON that can be sent.")
    call: PublishedCall = app.seal.open(message, task_id=task_id)
    _refuse_large(call, str(message), most)
    return call


def _refuse_large(call: PublishedCall, message: str, most: int) -> None:
    """Raise `MessageTooLarge` for a call with too large arguments, or with a too long user, intention or version."""
    fault = fault_in_names(
        user_ids=(call.user_id, call.caller.user_id),
        idempotency_key=call.idempotency_key,
        tool_version=call.tool_version,
    )
    if fault is None and len(message) > most:
        fault = size_fault(call.arguments, most=most) or size_fault_with(call.context, call.arguments, most=most)
    if fault is not None:
        raise MessageTooLarge(fault)
