"""Judges what a caller says of a call, whatever tool it is for: its names, and the arguments as JSON."""

from toolfleet_registry.contracts import Caller, ToolCall
from toolfleet_registry.policy.identities import fault_in_names
from toolfleet_registry.schemas.arguments import fault_in, size_fault


def fault_in_call(call: ToolCall, caller: Caller, *, most_bytes: int, are_small: bool = False) -> str | None:
    """Why such a call is not published, and where the fault lies, or `None`. Never repeats a value.

    `are_small`: whether its arguments are known to be small values, so that nobody need look again.
    """
    return (
        fault_in_names(user_ids=(call.user_id, caller.user_id), idempotency_key=call.idempotency_key)
        or fault_in(call.arguments, are_small=are_small)
        or size_fault(call.arguments, most=most_bytes, are_small=are_small)
    )
