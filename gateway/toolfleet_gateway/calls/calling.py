"""Begins calls for clients: judges who calls, publishes the call, and waits for its end as long as its client does."""

from dataclasses import dataclass
from typing import Literal

from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.calls.attaching import owner_of
from toolfleet_gateway.calls.bodies import CallBody, CallState
from toolfleet_gateway.calls.outcomes import problem_for
from toolfleet_gateway.calls.preferences import Preference
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import json_answer, json_text, text_answer
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.contracts import Conversation, ToolCall, ToolResult
from toolfleet_tasks.aio.closing import Closing
from toolfleet_tasks.calls.begun_handle import BegunHandle
from toolfleet_tasks.client.fleet import ToolFleet

CALLS = "/calls"
_CONFIRMATION_SECONDS = 5.0  # beyond what the client waits: a restarted Redis is back by then


@dataclass(frozen=True, slots=True)
class Calling:
    """The common parts of calls' routes.

    A request that is held open when `closing` begins is answered with its call's state.
    """

    fleet: ToolFleet
    settings: GatewaySettings
    closing: Closing

    async def begin(self, who: Identity, asked: CallBody, key: str | None) -> BegunHandle:
        """Publish a call. Raises `Problem` for one that is in no queue, and not because of its tool."""
        call = ToolCall(
            tool_name=asked.tool_name,
            arguments=asked.arguments,
            idempotency_key=key,
            tool_version=asked.tool_version,
            log_level=asked.log_level,
        )
        conversation_id = who.conversation_id or asked.conversation_id  # a token's own counts
        is_named = conversation_id is not None or asked.run_id is not None
        where = Conversation(conversation_id=conversation_id, run_id=asked.run_id) if is_named else None
        caller = who.caller_for(asked.user_id, asked.agent)
        handle = await self.fleet.begun_calls.begin(
            call, caller, owner_of(who), conversation=where, timeout=asked.timeout_seconds
        )
        if handle.refusal is not None and (problem := await problem_for(self.fleet, who, handle.refusal)) is not None:
            raise problem
        return handle

    async def end_of(self, handle: BegunHandle, preference: Preference) -> ToolResult | None:
        """Return the call's result, if it comes while its client waits. The call continues in any case.

        Raises `Problem` if no other gateway could continue it: Redis has not confirmed it, and may not have it.
        """
        waits = (
            preference.applied is not None or not handle.waits_for_approval
        )  # people take longer than a client waits by default
        result = await handle.end_within(preference.seconds if waits else 0, self.closing)
        if result is None and not await handle.is_kept_within(_CONFIRMATION_SECONDS):
            raise _unconfirmed()
        return result if result is not None else await handle.end_within(0)

    async def answer(self, handle: BegunHandle, preference: Preference) -> Response:
        """200 with the call's result, or 202 with where it is."""
        result = await self.end_of(handle, preference)
        if result is not None:
            return result_answer(result, preference)
        headers = {"location": self.location(handle.id), "retry-after": "1", **preference.headers}
        return json_answer(first_state(handle), 202, headers)

    def location(self, call_id: str) -> str:
        """Return the path at which a call is followed."""
        return f"{self.settings.gateway_root_path}{CALLS}/{call_id}"


def result_answer(result: ToolResult, preference: Preference) -> Response:
    """A call's result, as it is."""
    return text_answer(json_text(result, with_none=True), headers=preference.headers)


def _unconfirmed() -> Problem:
    """Return the problem of a call that was sent to a Redis which was lost then.

    With a key a repeat joins it, wherever it is.
    """
    return Problem(
        503,
        "fleet_unavailable",
        "The fleet's Redis has not confirmed the call: it may be in its queue, or not.",
        hint="Repeat it with its Idempotency-Key; without one a repeat may be a second call.",
        effect_state="unknown",
        retry_after_seconds=1.0,
    )


def first_state(handle: BegunHandle) -> CallState:
    """Return the state of a call that was just started."""
    state: Literal["queued", "waiting_approval"] = "waiting_approval" if handle.waits_for_approval else "queued"
    return CallState(call_id=handle.id, tool_name=handle.tool_name, state=state)
