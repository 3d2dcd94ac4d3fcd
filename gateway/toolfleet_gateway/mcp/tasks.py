"""Serves calls that go on after an answer: as tasks (SEP-2663), and in rounds of one request (SEP-2322).

A round carries to the client what a call's module asks, or whether the call may begin, and carries the answers back. The methods of
the extension `io.modelcontextprotocol/tasks` are `tasks/get`, `tasks/update` and `tasks/cancel`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import Field
from redis.asyncio import Redis

from toolfleet_gateway.auth.own_secrets import FleetCodec, NotSealedHere
from toolfleet_gateway.calls import attached, owner_of
from toolfleet_gateway.mcp.client_request import (
    Context,
    ViewOf,
    capability_of,
    in_its_place,
    needing_redis,
    takes_forms,
)
from toolfleet_gateway.mcp.results import (
    APPROVAL,
    EXTENSION,
    CallApproval,
    ClientApprovals,
    call_result,
    lacks_tasks,
    passed_failure,
    task_facts,
)
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts.inputs import InputMethod, PendingInput
from toolfleet_registry.errors import InputNotTaken
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import reaching_redis
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.calls.begun_calls import BegunHandle
from toolfleet_tasks.calls.pending_call import CallStatus
from toolfleet_tasks.client.fleet import ToolFleet

_LASTS_SECONDS = 3600  # for the person who is asked
_MOST_FACTS = 5  # a later gateway's state with more of them is answered by such a gateway

Kinds = frozenset[InputMethod]

_NAME_HEADER = "mcp-name"


class WrongState(ValueError):
    """A client has sent a state back that is not of this client and request, or too late."""


@dataclass(frozen=True, slots=True)
class AskedRound:
    """The question that is answered.

    `binding`: the binding of the approval; '' for a question of the module.
    """

    call_id: str
    number: int
    binding: str = ""


class SealedStates:
    """Seals for one fleet: what one gateway has sealed another opens. The key is the fleet's signing key, or lies in its Redis."""

    def __init__(self, redis: Redis, keys: GatewayKeys, signing_keys: tuple[str, ...]) -> None:
        self._codec = FleetCodec(redis, keys, signing_keys)

    async def seal(self, asked: AskedRound, view: McpView, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return the state for this caller and this request. Raises `FleetUnavailable`."""
        until = fleet_clock.now() + _LASTS_SECONDS
        facts: list[Any] = [asked.call_id, asked.number, _about(view, tool, arguments), until]
        if asked.binding:  # older gateways know four facts: they refuse what they cannot have asked
            facts.append(asked.binding)
        return await self._codec.seal(json.dumps(facts).encode())

    async def unseal(self, state: str, view: McpView, tool: str, arguments: Mapping[str, Any]) -> AskedRound:
        """Open a sealed state. Raises `WrongState` and `FleetUnavailable`."""
        try:
            facts: list[Any] = json.loads(await self._codec.unseal(state))
            if len(facts) < _MOST_FACTS:
                facts.append("")
            call_id, number, about, until, binding = facts
        except (NotSealedHere, ValueError):
            raise WrongState("requestState is none that was given here.") from None
        if about != _about(view, tool, arguments) or fleet_clock.now() > until:
            raise WrongState("requestState is of another request, or too old.")
        return AskedRound(call_id, number, binding)


def _about(view: McpView, tool: str, arguments: Mapping[str, Any]) -> str:
    said = json.dumps([view.who.name, view.who.caller.user_id, tool, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


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
        """Return the result that asks the client. Raises `MCPError` for a capability that it would have to declare."""
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
        """Return the result that asks the client whether its call may begin. The state is valid only for the call that it is shown."""
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
                has_voted = APPROVAL in responses and await _voted(
                    self._approvals, view, handle, answered.binding, responses[APPROVAL]
                )
                return handle, has_voted
            asked = await handle.next_stop(0)
            if isinstance(asked, PendingInput) and asked.round == answered.number:
                await self.answer(view, handle, asked, responses)
        except BaseException:
            handle.leave()
            raise
        return handle, False

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


async def _voted(approvals: ClientApprovals, view: McpView, handle: BegunHandle, binding: str, answer: Any) -> bool:
    """Take a person's answer as `ClientApprovals.vote` does. Raises `MCPError` for an invalid one."""
    try:
        return await approvals.vote(view, handle.id, binding, answer)
    except ValueError as exc:
        raise MCPError(types.INVALID_PARAMS, f"inputResponses: {exc}.") from None


class PartialAnswers:
    """The partial answers of all gateways.

    A later answer to the same question replaces the earlier one, until all questions are answered.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def add(self, call_id: str, asked: PendingInput, given: Mapping[str, Any]) -> dict[str, Any]:
        """Add answers and return all answers so far. Raises `FleetUnavailable`."""
        name = self._keys.mcp_answers(call_id, asked.round)
        async with reaching_redis(), self._redis.pipeline() as pipeline:
            pipeline.hset(name, mapping={key: json.dumps(value) for key, value in given.items()})
            pipeline.expire(name, _LASTS_SECONDS)
            pipeline.hgetall(name)
            found = (await pipeline.execute())[-1]
        return {_text(key): json.loads(value) for key, value in found.items()}

    async def answered(self, call_id: str, asked: PendingInput) -> frozenset[str]:
        """Return the requests that have their answers. Raises `FleetUnavailable`."""
        async with reaching_redis():
            found = await self._redis.hkeys(self._keys.mcp_answers(call_id, asked.round))
        return frozenset(map(_text, found))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class TaskIdParams(types.RequestParams):
    """The id of a task."""

    task_id: str = Field(alias="taskId", max_length=256)


class TaskUpdateParams(TaskIdParams):
    """A client's answers to the requests of its task, by their names."""

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
            with needing_redis():
                given = await self._fleet.begun_calls.hidden_answers(handle.id, given)
                whole = await self._partial.add(handle.id, asked, given)
                if whole.keys() >= asked.requests.keys():
                    owner = owner_of(self._view_of(context).who)
                    await self._fleet.begun_calls.answer(handle.id, owner, asked.round, whole)
        except (ValueError, InputNotTaken) as exc:
            raise MCPError(types.INVALID_PARAMS, f"inputResponses: {exc}") from None

    async def _vote(self, view: McpView, handle: BegunHandle, responses: dict[str, Any]) -> None:
        """Take what a client says that was asked whether the task may begin; of any other nothing is taken."""
        asked = await self._approvals.waited_for(view, handle)
        if asked is None or asked.question is None or (key := _approval_key(asked)) not in responses:
            return
        with needing_redis(": give the answer again"):
            await _voted(self._approvals, view, handle, asked.binding, responses[key])

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
        """Return the client's task of this id; `None` if it is unknown or another client's. Raises `MCPError`."""
        with needing_redis():
            return await attached(self._fleet, view.who, task_id)

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
    """Return the key of an approval's question. It changes with the call: answers about edited arguments do not count."""
    return f"{APPROVAL}-{asked.binding}"


def _key_of(asked: PendingInput, key: str) -> str:
    """Return a request's key, which is unique in a task's life: a task may ask the same again."""
    return key if asked.round == 1 else f"{key}-{asked.round}"
