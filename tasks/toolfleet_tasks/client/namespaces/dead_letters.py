"""Lists, shows, replays and drops dead letters: `fleet.dead_letters`."""

import builtins
from collections.abc import Mapping
from typing import Any

from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_registry.contracts.dead_letters import DeadLetter
from toolfleet_registry.policy.reach import as_sent
from toolfleet_tasks.calls.idempotency import end_of
from toolfleet_tasks.calls.prepare import check_timeout
from toolfleet_tasks.client.replay import Replay, replay_of, run_replay
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.client.sessions import Sessions
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.dead_letters.call_letters import Kept


class FleetDeadLetters:
    """The calls with an unknown end, which a fleet keeps.

    Each method raises `FleetUnavailable` when Redis does not answer within 5 s.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def list(self, limit: int = 50, offset: int = 0) -> builtins.list[Kept]:
        """List at most `limit` (up to 1,000) of those that are kept, after `offset`, the latest first."""
        return await (await self._sessions.opened()).dead.calls.list(limit, offset)

    async def show(self, call_id: str) -> Kept:
        """Return the dead letter of this call. Raises `NoSuchDeadLetter`."""
        return await (await self._sessions.opened()).dead.calls.show(call_id)

    async def replay(
        self,
        call_id: str,
        caller: Caller | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `ToolFleet.call`
    ) -> ToolResult:
        """Run a dead letter's call once more, as a new call that names it, judged again; by default for its old caller.

        `arguments` replace the letter's, each as a whole; those that it no longer has must be among them. The letter is
        dropped when the replay succeeds, or is a dead letter itself; only one replay of it runs at a time. Raises
        `NoSuchDeadLetter`.
        """
        check_timeout(timeout)
        session = await self._sessions.opened()
        letter = await session.dead.calls.show(call_id)
        old = letter.caller if isinstance(letter, DeadLetter) else Caller()
        asked_by = caller or as_sent(old, session.settings.default_guest_modules)
        again = replay_of(letter, arguments or {}, asked_by)
        result = again if isinstance(again, ToolResult) else await _run(session, call_id, again, timeout)
        if result.audit.call_id:  # the new call's own
            return result
        return session.trail.refused(ToolCall(tool_name=result.tool_name), asked_by, result, {})

    async def drop(self, *call_ids: str) -> tuple[str, ...]:
        """Forget these dead letters. Returns the ids of those that were there."""
        return await (await self._sessions.opened()).dead.calls.drop(call_ids)

    async def drop_all(self) -> int:
        """Forget all dead letters. Returns how many there were."""
        return await (await self._sessions.opened()).dead.calls.drop_all()


class SyncFleetDeadLetters(SyncFace[FleetDeadLetters]):
    """`FleetDeadLetters` with plain methods."""

    list = blocking(FleetDeadLetters.list)
    show = blocking(FleetDeadLetters.show)
    replay = blocking(FleetDeadLetters.replay)
    drop = blocking(FleetDeadLetters.drop)
    drop_all = blocking(FleetDeadLetters.drop_all)


async def _run(session: Session, call_id: str, again: Replay, timeout: float | None) -> ToolResult:  # noqa: ASYNC109
    asked = again.call, again.caller, again.conversation
    seconds = session.preparation.seconds_for(*asked, timeout)

    async def run() -> ToolResult:
        return await end_of(await session.begin(*asked, seconds, waits=True, replay_of=call_id, around=again.around))

    return await run_replay(session.dead.calls, call_id, seconds=seconds, run=run)
