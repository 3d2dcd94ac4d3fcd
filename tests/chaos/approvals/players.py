"""Plays cases: an agent that asks for a call and repeats itself, and people who decide about it, each as often as it takes."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from chaos.approvals.cases import GIVE_UP_SECONDS, Case, Kind
from toolfleet import ApprovalNotTaken, Approver, FleetUnavailable, StoredApproval, ToolFleet, ToolResult

_TIMEOUT_SECONDS = 40.0
_PAUSE_SECONDS, _GROWTH, _LONGEST_PAUSE_SECONDS = 0.2, 1.6, 4.0
_PEOPLE = tuple(Approver("command line", name, "admin") for name in ("bob", "eve"))
_AGAIN = frozenset({"fleet_unavailable", "busy"})


class Pauses:
    """Those between the tries of one case: each longer than the one before, so that thousands of them leave Redis its time."""

    def __init__(self, dice: random.Random) -> None:
        self._dice, self._seconds = dice, _PAUSE_SECONDS

    async def rest(self) -> None:
        """Wait until the next try."""
        await asyncio.sleep(self._seconds * self._dice.uniform(0.5, 1))
        self._seconds = min(self._seconds * _GROWTH, _LONGEST_PAUSE_SECONDS)


class Players:
    """Agents and people, each at one of several fleets, as in processes of their own."""

    def __init__(self, fleets: Sequence[ToolFleet], dice: random.Random) -> None:
        self._fleets, self._dice = fleets, dice

    async def play(self, case: Case) -> None:
        """Return when all that the case's agent can be told was told. One that was asked for before is not asked for again."""
        case.handle = None  # it was of somebody who has died
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                case.approval_id = case.approval_id or await self._asked(case)
                await self._decide(case)
                case.state = (await self._settled(case)).state
                case.told = await self._end(case)
        except TimeoutError:
            case.trouble.append(f"no end in {GIVE_UP_SECONDS:.0f} s")
        except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
            case.trouble.append(repr(exc))

    async def _asked(self, case: Case) -> str:
        pauses = Pauses(self._dice)
        while case.kind == "cancelled":
            case.handle = await self._fleet().submit(case.call, case.caller, timeout=_TIMEOUT_SECONDS)
            if await case.handle.status() != "done":
                return case.handle.id
            await pauses.rest()
        while True:
            result = await self._fleet().call(case.call, case.caller, timeout=_TIMEOUT_SECONDS)
            if result.error_code == "approval_required":
                return result.audit.call_id
            if result.error_code == "approval_denied" and case.kind == "expired":
                return result.audit.call_id
            if result.error_code == "timed_out" and "first call with its idempotency key" in str(result.error):
                return result.audit.call_id  # an answer was lost, and it waits
            if result.error_code not in _AGAIN:
                raise AssertionError(f"asking has come to {result}")
            await pauses.rest()

    async def _decide(self, case: Case) -> None:
        bob, eve = _PEOPLE
        decide: dict[Kind, Sequence[Callable[[], Awaitable[object]]]] = {
            "approved": [lambda: self._approve(case, bob)],
            "raced": [lambda: self._approve(case, bob), lambda: self._approve(case, eve)],
            "rejected": [lambda: self._reject(case.approval_id, bob)],
            "edited": [lambda: self._approve(case, bob, {"ref": case.edited})],
            "contested": [lambda: self._approve(case, bob), lambda: self._reject(case.approval_id, eve)],
            "expired": [],
            "cancelled": [lambda: self._cancel(case), lambda: self._approve(case, bob)],
            "forged": [lambda: self._forge(case), lambda: self._reject(case.approval_id, bob)],
        }
        await asyncio.sleep(self._dice.uniform(0, 0.5))
        await asyncio.gather(*(one() for one in decide[case.kind]))

    async def _approve(self, case: Case, by: Approver, arguments: dict[str, Any] | None = None) -> None:
        await self._until_taken(lambda fleet: fleet.approvals.approve(case.approval_id, by, arguments=arguments))

    async def _reject(self, approval_id: str, by: Approver) -> None:
        await self._until_taken(lambda fleet: fleet.approvals.reject(approval_id, by))

    async def _until_taken(self, decide: Callable[[ToolFleet], Awaitable[object]]) -> None:
        """Again and again, as one does who has had no answer; until it is taken, or somebody else's was."""
        pauses = Pauses(self._dice)
        while True:
            try:
                await decide(self._fleet())
            except FleetUnavailable:
                await pauses.rest()
            except ApprovalNotTaken as exc:
                if exc.reason != "raced":
                    return
            else:
                return

    async def _cancel(self, case: Case) -> None:
        """As its agent does that has changed its mind."""
        if case.handle is not None:
            await asyncio.sleep(self._dice.uniform(0, 0.3))
            await case.handle.cancel()

    async def _forge(self, case: Case) -> None:
        """Put the very call into its queue, before anybody has approved it."""
        session = await self._fleet()._sessions.opened()
        found = await session.approvals.records.read(case.approval_id)
        if found is not None:
            with contextlib.suppress(Exception):
                await session._publisher.publish(found.call, seconds=5, limit=0, again=True)

    async def _settled(self, case: Case) -> StoredApproval:
        """What people's decisions have come to."""
        pauses = Pauses(self._dice)
        while True:
            try:
                found = await self._fleet().approvals.show(case.approval_id)
            except FleetUnavailable:
                found = None
            if found is not None and (found.state != "waiting" or found.place == "done"):
                return found
            await pauses.rest()

    async def _end(self, case: Case) -> ToolResult | None:
        """What the agent is told of an approved call by a repeat; others have ended as they were decided."""
        if case.state != "approved":
            return None
        pauses = Pauses(self._dice)
        while True:
            result = await self._fleet().call(case.call, case.caller, timeout=_TIMEOUT_SECONDS)
            if result.audit.call_id == case.approval_id and "first call with its" not in str(result.error):
                return result
            if result.error_code == "approval_required":
                # The first one has ended with nothing done, and its key is free: this is another one, which nobody wants.
                await self._reject(result.audit.call_id, _PEOPLE[0])
                return None
            await pauses.rest()

    def _fleet(self) -> ToolFleet:
        return self._dice.choice(self._fleets)
