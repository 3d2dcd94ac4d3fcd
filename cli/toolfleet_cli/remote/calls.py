"""Has a gateway call a tool, and follows the call to its end."""

from typing import Any, NoReturn

from toolfleet_cli.console.output import note
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts import Conversation, ToolDefinition, ToolResult
from toolfleet_registry.system import randomness

_WAIT_SECONDS = 30  # that one question is held open
_MORE_SECONDS = 15.0  # for its answer to come


def offered(gateway: Gateway, name: str) -> ToolDefinition | None:
    """The tool as the key sees it; `None`: it does not, and may call it all the same."""
    found = gateway.find(place("tools", name))
    return None if found is None else ToolDefinition.model_validate(found)


def called(  # noqa: PLR0913 - what may be said of a call
    gateway: Gateway,
    name: str,
    arguments: Any,
    where: Conversation,
    *,
    seconds: float | None,
    version: str | None,
    agent: str | None = None,
) -> ToolResult:
    """Return the call's result; a refusal ends the command. Ctrl-C cancels the call."""
    said = {"tool_name": name, "arguments": arguments, "timeout_seconds": seconds, "tool_version": version}
    said |= {"conversation_id": where.conversation_id, "run_id": where.run_id, "agent": agent}
    body = {field: value for field, value in said.items() if value is not None}
    headers = {"prefer": "respond-async", "idempotency-key": randomness.uuid4().hex}
    patience = _WAIT_SECONDS + _MORE_SECONDS
    begun = gateway.ask("POST", "/calls", seconds=patience, about=name, json=body, headers=headers)
    if "call_id" not in begun:  # it has ended already
        return ToolResult.model_validate(begun)
    if begun["state"] == "waiting_approval":
        from toolfleet_tasks.messages.approval_results import approval_required

        return approval_required(begun["tool_name"], begun["call_id"], expires_at=None)
    path = place("calls", begun["call_id"])
    try:
        while (state := _state(gateway, path))["state"] != "done":
            pass
    except KeyboardInterrupt:
        _take_back(gateway, path)
    return ToolResult.model_validate(state["result"])


def _state(gateway: Gateway, path: str) -> Any:
    return gateway.ask("GET", path, seconds=_WAIT_SECONDS + _MORE_SECONDS, headers={"prefer": f"wait={_WAIT_SECONDS}"})


def _take_back(gateway: Gateway, path: str) -> NoReturn:
    state = gateway.delete(path)
    result = state.get("result") or {}
    ended = result.get("error") or ("it had just succeeded" if result.get("success") else "it is being taken back")
    note(f"Call {state['call_id']}: {ended}")
    raise KeyboardInterrupt
