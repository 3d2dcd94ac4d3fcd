"""Refuses calls that are larger than an agent would publish them: handmade ones, and those of agents with other settings."""

from typing import Any

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import MessageTooLarge
from toolfleet_registry.policy.call_faults import fault_in_names
from toolfleet_registry.schemas.arguments import size_fault
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.context import size_fault_with

_BESIDE_ARGUMENTS = 2**18  # characters: thousands of modules may be named for a caller


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
