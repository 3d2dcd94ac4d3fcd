"""Carries what a call's module asks to the client, or whether it may begin, and the answers back, in rounds of one request (SEP-2322)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.auth.fleet_codec import FleetCodec, NotSealedHere
from toolfleet_gateway.calls import attached, owner_of
from toolfleet_gateway.mcp.approvals import APPROVAL, CallApproval, ClientApprovals
from toolfleet_gateway.mcp.client_request import capability_of, in_its_place
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts.inputs import InputMethod, PendingInput
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.calls.begun_calls import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

_LASTS_SECONDS = 3600  # for the person who is asked
_MOST_FACTS = 5  # a later gateway's state with more of them is answered by such a gateway

Kinds = frozenset[InputMethod]


class WrongState(ValueError):
    """A client has sent back what was not given to it, for this request, or too late."""


@dataclass(frozen=True, slots=True)
class AskedRound:
    """The question of the call that is answered.

    `binding`: of the approval that was asked for; '': it was a question of the module's.
    """

    call_id: str
    number: int
    binding: str = ""


class SealedStates:
    """Seals for one fleet: what one gateway has sealed another opens. The key is the fleet's signing key, or lies in its Redis."""

    def __init__(self, redis: Redis, keys: GatewayKeys, signing_keys: tuple[str, ...]) -> None:
        self._codec = FleetCodec(redis, keys, signing_keys)

    async def seal(self, asked: AskedRound, view: McpView, tool: str, arguments: Mapping[str, Any]) -> str:
        """The state for this caller and this request. Raises `FleetUnavailable`."""
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


class PartialAnswers:
    """The partial answers of all gateways.

    A later answer to the same question replaces the earlier one, until all questions are answered.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def add(self, call_id: str, asked: PendingInput, given: Mapping[str, Any]) -> dict[str, Any]:
        """All answers so far, with these. Raises `FleetUnavailable`."""
        name = self._keys.mcp_answers(call_id, asked.round)
        try:
            async with self._redis.pipeline() as pipeline:
                pipeline.hset(name, mapping={key: json.dumps(value) for key, value in given.items()})
                pipeline.expire(name, _LASTS_SECONDS)
                pipeline.hgetall(name)
                found = (await pipeline.execute())[-1]
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        return {_text(key): json.loads(value) for key, value in found.items()}

    async def answered(self, call_id: str, asked: PendingInput) -> frozenset[str]:
        """The requests that have their answers. Raises `FleetUnavailable`."""
        try:
            found = await self._redis.hkeys(self._keys.mcp_answers(call_id, asked.round))
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        return frozenset(map(_text, found))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
