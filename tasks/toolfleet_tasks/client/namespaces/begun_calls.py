"""Begins calls that any process may go on with, and goes on with those: `fleet.begun_calls`."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetUnavailable, InputNotTaken
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.calls.prepare import check_timeout
from toolfleet_tasks.client.sessions import Sessions


class FleetBegunCalls:
    """Calls that a stateless process, such as a gateway, starts for its clients. `owner`: the client's user."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def begin(
        self,
        call: ToolCall,
        caller: Caller,
        owner: Owner,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
        waits_for_turn: bool = False,
    ) -> BegunHandle:
        """Start a call as `ToolFleet.submit` does, for an `owner`: once this returns, any process can `attach` the call.

        Raises `FleetUnavailable`, at once if Redis is known to be away, and `ValueError` for a `timeout` that is no
        number.
        """
        check_timeout(timeout)
        session = self._sessions.here() or await self._sessions.opened()
        await session.begun.check_reachable()  # a client over HTTP comes again: an agent waits
        return BegunHandle(await session.begin(call, caller, conversation, timeout, waits=waits_for_turn, owner=owner))

    async def tool(self, name: str, caller: Caller) -> ToolDefinition | None:
        """The tool of this name that the caller may call, listed or not; `None` if there is none. From memory."""
        session = self._sessions.here() or await self._sessions.opened()
        return session.tool(name, caller)

    async def reaches(self, name: str, caller: Caller) -> bool:
        """Return whether the caller may know that the tool exists, also one that is closed to all. From memory."""
        return (self._sessions.here() or await self._sessions.opened()).reaches(name, caller)

    async def absence(self, name: str, caller: Caller) -> ToolResult:
        """The refusal of a tool that looks to the caller like one that does not exist. From memory."""
        return (self._sessions.here() or await self._sessions.opened()).absence(name, caller)

    async def attach(self, call_id: str, owner: Owner) -> BegunHandle | None:
        """Follow a call that some process has started for the owner; `None` for one that is unknown, or another's.

        `leave` it: the call continues. Raises `FleetUnavailable`.
        """
        begun = (await self._sessions.opened()).begun
        record = await begun.find(call_id, owner)
        return None if record is None else BegunHandle(await begun.attach(record), is_guest=record.is_guest)

    async def keep_deferred(self, owner: Owner, idempotency_key: str, call_id: str, *, seconds: float) -> None:
        """Keep which call the owner's key has stood for, `seconds` and a week: longer than the key stands for it.

        Raises `FleetUnavailable`.
        """
        await (await self._sessions.opened()).begun.keep_deferred(owner, idempotency_key, call_id, seconds)

    async def answer(
        self,
        call_id: str,
        owner: Owner,
        number: int | None,
        responses: Mapping[str, Any],
    ) -> bool:
        """Answer question `number` of a call of the owner's, or its present one, by one object for each key of its requests.

        False if it has the same answer already. Raises `InputNotTaken`, `ValueError` for an invalid answer, and
        `FleetUnavailable`: then it may have been taken, and the same answer may be given again.
        """
        session = await self._sessions.opened()
        if await session.begun.find(call_id, owner) is None:
            raise InputNotTaken(call_id, "unknown")
        return await session.answers.answer(call_id, number, responses)

    async def hidden_answers(self, call_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Return some answers to what a call asks as they may be kept: without what its agent's profile hides.

        Raises `ValueError` where the profile blocks them, `InputNotTaken` and `FleetUnavailable`.
        """
        return await (await self._sessions.opened()).answers.hidden(call_id, responses)

    def shown_ids(self, caller: Caller) -> Mapping[str, str]:
        """Return how logs name the caller's user, by `user_id`; nothing where its agent's profile hides no personal data."""
        session = self._sessions.here()
        return {} if session is None else session.preparation.facts_of(caller, caller.user_id, None)

    async def ping(self) -> bool:
        """Return whether Redis answers now."""
        try:
            return await (await self._sessions.opened()).begun.ping()
        except FleetUnavailable:
            return False
