"""Answers `tasks/get`, `tasks/update` and `tasks/cancel` of the extension `io.modelcontextprotocol/tasks` (SEP-2663)."""

from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import Field

from toolfleet_gateway.calls import attached, owner_of
from toolfleet_gateway.mcp.approvals import APPROVAL, CallApproval, ClientApprovals
from toolfleet_gateway.mcp.client_request import Context, ViewOf, takes_forms
from toolfleet_gateway.mcp.results import EXTENSION, call_result, lacks_tasks, passed_failure, task_facts
from toolfleet_gateway.mcp.rounds import PartialAnswers
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.calls.begun_calls import BegunHandle
from toolfleet_tasks.calls.pending_call import CallStatus
from toolfleet_tasks.client.fleet import ToolFleet

_NAME_HEADER = "mcp-name"


class TaskIdParams(types.RequestParams):
    """Which task is meant."""

    task_id: str = Field(alias="taskId", max_length=256)


class TaskUpdateParams(TaskIdParams):
    """What its client answers to what the task has asked for, by the names of the requests."""

    input_responses: dict[str, Any] = Field(default_factory=dict, alias="inputResponses")


class TaskMethods:
    """The tasks of one gateway's clients: calls, of which any gateway knows."""

    def __init__(
        self,
        fleet: ToolFleet,
        view_of: ViewOf,
        partial: PartialAnswers,
        approvals: ClientApprovals,
    ) -> None:
        self._partial = partial
        self._approvals = approvals
        self._fleet = fleet
        self._view_of = view_of

    async def get(self, context: Context, params: TaskIdParams) -> dict[str, Any]:
        """Return a task's state, and its result once it has ended."""
        handle = await self._attached(context, params.task_id)
        try:
            asks = takes_forms(capabilities_of(context.params))
            return {"resultType": "complete", **await self.state(self._view_of(context), handle, takes_forms=asks)}
        finally:
            handle.leave()

    async def update(self, context: Context, params: TaskUpdateParams) -> dict[str, Any]:
        """Take what a task has asked for. One that asks for nothing takes nothing."""
        handle = await self._attached(context, params.task_id)
        try:
            status = await handle.status()
            if status.inputs is not None:
                await self._answer(context, handle, status.inputs, params.input_responses)
            elif status == "waiting_approval":
                await self._vote(self._view_of(context), handle, params.input_responses)
            return {"resultType": "complete"}
        finally:
            handle.leave()

    async def _answer(
        self, context: Context, handle: BegunHandle, asked: PendingInput, responses: dict[str, Any]
    ) -> None:
        """Answer what a task asks now, all or a part: keys are those of `tasks/get`, each for one question only."""
        given = {key: responses[name] for key in asked.requests if (name := _key_of(asked, key)) in responses}
        if not given:
            return
        try:
            given = await self._fleet.begun_calls.hidden_answers(handle.id, given)
            whole = await self._partial.add(handle.id, asked, given)
            if whole.keys() >= asked.requests.keys():
                owner = owner_of(self._view_of(context).who)
                await self._fleet.begun_calls.answer(handle.id, owner, asked.round, whole)
        except (ValueError, InputNotTaken) as exc:
            raise MCPError(types.INVALID_PARAMS, f"inputResponses: {exc}") from None
        except FleetUnavailable:
            raise MCPError(types.INTERNAL_ERROR, "The fleet's Redis does not answer.") from None

    async def _vote(self, view: McpView, handle: BegunHandle, responses: dict[str, Any]) -> None:
        """Take what a client says that was asked whether the task may begin; of any other nothing is taken."""
        asked = await self._approvals.waited_for(view, handle)
        if asked is None or asked.question is None or (key := _approval_key(asked)) not in responses:
            return
        try:
            await self._approvals.vote(view, handle.id, asked.binding, responses[key])
        except ValueError as exc:
            raise MCPError(types.INVALID_PARAMS, f"inputResponses: {exc}.") from None
        except FleetUnavailable:
            raise MCPError(types.INTERNAL_ERROR, "The fleet's Redis does not answer: give the answer again.") from None

    async def cancel(self, context: Context, params: TaskIdParams) -> dict[str, Any]:
        """Take a task back. One that has ended stays as it ended."""
        handle = await self._attached(context, params.task_id)
        try:
            if not handle.is_guest:
                await handle.cancel()
            return {"resultType": "complete"}
        finally:
            handle.leave()

    async def find(self, view: McpView, task_id: str) -> BegunHandle | None:
        """The client's task of this id; `None` for one that is unknown, and for another's. Raises `MCPError`."""
        try:
            return await attached(self._fleet, view.who, task_id)
        except FleetUnavailable:
            raise MCPError(types.INTERNAL_ERROR, "The fleet's Redis does not answer.") from None

    async def _attached(self, context: Context, task_id: str) -> BegunHandle:
        capabilities = capabilities_of(context.params)
        if EXTENSION not in (capabilities.get("extensions") or {}):
            raise lacks_tasks()
        headers = {} if context.request is None else context.request.headers
        if headers.get(_NAME_HEADER, task_id) != task_id:  # FastMCP's client sends none
            raise MCPError(types.HEADER_MISMATCH, "The header Mcp-Name must be the task's id.")
        handle = await self.find(self._view_of(context), task_id)
        if handle is None:
            raise MCPError(types.INVALID_PARAMS, "There is no such task: it is unknown, or was forgotten.")
        return handle

    async def state(self, view: McpView, handle: BegunHandle, *, takes_forms: bool) -> dict[str, Any]:
        """Return a task's state, with its result or its question to a client that `takes_forms`.

        Raises `FleetUnavailable`.
        """
        now = fleet_clock.now()
        result = await handle.end_within(0)
        if result is None:
            status = await handle.status()
            result = await handle.end_within(0)  # it may have ended meanwhile
            if result is None:
                if status == "waiting_approval":
                    return await self._waiting(view, handle, now, takes_forms=takes_forms)
                return await self._going_on(handle, status, now)
        if result.error_code == "cancelled":
            return task_facts(handle, "cancelled", now=now, message=result.error)
        if (error := passed_failure(result)) is not None:
            return {**task_facts(handle, "failed", now=now), "error": error.error.model_dump()}
        return {**task_facts(handle, "completed", now=now), "result": call_result(result, handle.id)}

    async def _waiting(self, view: McpView, handle: BegunHandle, now: float, *, takes_forms: bool) -> dict[str, Any]:
        """Return the state of a task that needs an approval.

        It requires input only of a client that may give it: others have nothing to answer.
        """
        asked = await self._approvals.waited_for(view, handle)
        message = None if asked is None else asked.sentence
        if asked is None or asked.question is None or not takes_forms:
            return task_facts(handle, "working", now=now, message=message)
        requests = {_approval_key(asked): asked.question.model_dump(mode="json")}
        facts = task_facts(handle, "input_required", now=now, message=message)
        return {**facts, "inputRequests": requests}

    async def _going_on(self, handle: BegunHandle, status: CallStatus, now: float) -> dict[str, Any]:
        """Return the state of a task that has not ended, and its question."""
        if status.inputs is None:
            message = None if status.progress is None else status.progress.message or None
            return task_facts(handle, "working", now=now, message=message)
        answered = await self._partial.answered(handle.id, status.inputs)
        requests = {
            _key_of(status.inputs, key): request.model_dump(mode="json")
            for key, request in status.inputs.requests.items()
            if key not in answered
        }
        return {**task_facts(handle, "input_required", now=now), "inputRequests": requests}


def capabilities_of(params: Any) -> dict[str, Any]:
    """Return the capabilities of a request's client, of the era in which each request states them."""
    meta = (params or {}).get("_meta")
    stated = meta.get(types.CLIENT_CAPABILITIES_META_KEY) if isinstance(meta, dict) else None
    return stated if isinstance(stated, dict) else {}


def _approval_key(asked: CallApproval) -> str:
    """One for each state of the call: an answer about arguments that were edited since has none any more."""
    return f"{APPROVAL}-{asked.binding}"


def _key_of(asked: PendingInput, key: str) -> str:
    """A request's key for the life of a task, which may ask the same again."""
    return key if asked.round == 1 else f"{key}-{asked.round}"
