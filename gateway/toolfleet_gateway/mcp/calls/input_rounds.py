"""Carries what a call's module asks to the client, or whether it may begin, and the answers back, in rounds of one request (SEP-2322)."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.calls import attached, owner_of
from toolfleet_gateway.mcp.approval_forms import APPROVAL
from toolfleet_gateway.mcp.calls.client_kinds import capability_of, in_its_place
from toolfleet_gateway.mcp.calls.sealed_state import AskedRound, SealedStates, WrongState
from toolfleet_gateway.mcp.client_approvals import CallApproval, ClientApprovals
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts.inputs import InputMethod, PendingInput
from toolfleet_registry.errors import InputNotTaken
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

Kinds = frozenset[InputMethod]


def lacks(method: InputMethod) -> MCPError:
    """Return the error for a client that would have to declare more for the tool."""
    needed: dict[str, Any] = {"requiredCapabilities": {capability_of(method): {}}}
    message = "The tool asks for what this client does not declare."
    return MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)


class InputRounds:
    """The rounds of one gateway's clients; another gateway goes on with them."""

    def __init__(self, fleet: ToolFleet, states: SealedStates, approvals: ClientApprovals) -> None:
        self._fleet = fleet
        self._states = states
        self._approvals = approvals

    async def ask(
        self, view: McpView, handle: BegunHandle, asked: PendingInput, kinds: Kinds, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The result that asks the client for what it can give. Raises `MCPError` for what it would have to declare."""
        shown = {key: request for key, request in asked.requests.items() if request.method in kinds}
        for request in asked.requests.values():
            if request.method not in kinds and in_its_place(request) is None:
                await handle.cancel()
                raise lacks(request.method)
        state = await self._states.seal(AskedRound(handle.id, asked.round), view, handle.tool_name, arguments)
        requests = {key: request.model_dump(mode="json") for key, request in shown.items()}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    async def ask_approval(
        self, view: McpView, handle: BegunHandle, asked: CallApproval, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The result that asks the client whether its call may begin. The state is good for what it is shown, and for nothing else."""
        state = await self._states.seal(AskedRound(handle.id, 0, asked.binding), view, handle.tool_name, arguments)
        requests = {} if asked.question is None else {APPROVAL: asked.question.model_dump(mode="json")}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    async def resume(
        self, view: McpView, tool: str, arguments: Mapping[str, Any], state: str, responses: Mapping[str, Any]
    ) -> tuple[BegunHandle, bool]:
        """Return the call that a client continues, once it has its answers; missing ones are asked for again.

        Also returns true if the client has answered about the call's approval, and is not asked again.

        Raises `WrongState` and `FleetUnavailable`, and `MCPError` if it has another answer already.
        """
        answered = await self._states.unseal(state, view, tool, arguments)
        handle = await attached(self._fleet, view.who, answered.call_id)
        if handle is None:
            raise WrongState("The call of this requestState is unknown, or was forgotten.")
        try:
            if answered.binding:
                return handle, await self._voted(view, handle, answered.binding, responses)
            asked = await handle.next_stop(0)
            if isinstance(asked, PendingInput) and asked.round == answered.number:
                await self.answer(view, handle, asked, responses)
        except BaseException:
            handle.leave()
            raise
        return handle, False

    async def _voted(self, view: McpView, handle: BegunHandle, binding: str, responses: Mapping[str, Any]) -> bool:
        if APPROVAL not in responses:
            return False
        try:
            return await self._approvals.vote(view, handle.id, binding, responses[APPROVAL])
        except ValueError as exc:
            raise MCPError(types.INVALID_PARAMS, f"inputResponses: {exc}.") from None

    async def answer(
        self, view: McpView, handle: BegunHandle, asked: PendingInput, responses: Mapping[str, Any]
    ) -> None:
        """Give the answers to what the call asks, if all that the client can give are there. Raises `MCPError` and `FleetUnavailable`."""
        stood_in = {key: in_its_place(request) for key, request in asked.requests.items() if key not in responses}
        given = {key: responses.get(key, stood_in.get(key)) for key in asked.requests}
        if not any(key in responses for key in asked.requests) or any(value is None for value in given.values()):
            return  # it is asked again
        try:
            await self._fleet.begun_calls.answer(handle.id, owner_of(view.who), asked.round, given)
        except InputNotTaken as exc:
            if exc.reason == "answered":
                raise MCPError(types.INVALID_PARAMS, "This was answered otherwise before.") from None
        except ValueError as exc:
            raise MCPError(types.INVALID_PARAMS, f"inputResponses: {exc}.") from None
