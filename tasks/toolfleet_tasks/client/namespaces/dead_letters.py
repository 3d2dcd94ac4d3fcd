"""The part of `ToolFleet` that looks at dead letters, and drops them."""

from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.ledger.dead_letters import Kept


class LetterMethods:
    """Methods of `ToolFleet`, which has the sessions."""

    _sessions: Sessions

    async def dead_letters(self, limit: int = 50, offset: int = 0) -> list[Kept]:
        """At most `limit` (up to 1,000) of the calls with an unknown end that are kept, after `offset`, the latest first.

        As the other methods of dead letters, it raises `FleetUnavailable` when Redis does not answer within 5 s.
        """
        return await (await self._sessions.opened()).dead.list(limit, offset)

    async def dead_letter(self, call_id: str) -> Kept:
        """The dead letter of this call. Raises `NoSuchDeadLetter`."""
        return await (await self._sessions.opened()).dead.show(call_id)

    async def drop_dead_letters(self, *call_ids: str) -> tuple[str, ...]:
        """Forget these dead letters. Returns the ids of those that were there."""
        return await (await self._sessions.opened()).dead.drop(call_ids)

    async def drop_all_dead_letters(self) -> int:
        """Forget all dead letters. Returns how many there were."""
        return await (await self._sessions.opened()).dead.drop_all()
