"""Plays cases: an agent that asks for a call and repeats itself, and people who decide about it, each as often as it takes."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.plan import MODULES
from toolfleet import (
    ApprovalNotTaken,
    Approver,
    Caller,
    CallHandle,
    FleetUnavailable,
    StoredApproval,
    ToolCall,
    ToolFleet,
    ToolResult,
)

Kind = Literal["approved", "raced", "rejected", "edited", "contested", "expired", "cancelled", "forged"]
KINDS: Mapping[Kind, int] = {
    "approved": 40,
    "raced": 15,
    "rejected": 10,
    "edited": 10,
    "contested": 10,
    "expired": 5,
    "cancelled": 5,
    "forged": 5,
}
"""How often each happens, of a hundred: two approve at once; one approves and one rejects at once; the agent takes it back as one approves."""

AGENTS: Mapping[str, Any] = {
    "one": {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["*.once"], "expires_seconds": 600}]},
    "hasty": {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["*.once"], "expires_seconds": 2}]},
}
GIVE_UP_SECONDS = 120.0
_TIMEOUT_SECONDS, _PAUSE_SECONDS = 40.0, 0.3
_BEHAVIOURS = {"ok": 80, "fails": 6, "fails_clean": 3, "error": 4, "hangs_up": 5, "busy": 2}
_PEOPLE = tuple(Approver("command line", name, "admin") for name in ("bob", "eve"))
_AGAIN = frozenset({"fleet_unavailable", "busy"})


@dataclass
class Case:
    """One call that people have to approve. `edited`: the `ref` of what it becomes, if anybody edits it. `told`: what its agent was told last."""

    ref: str
    kind: Kind
    tool: str
    arguments: dict[str, Any]
    approval_id: str = ""
    handle: CallHandle | None = None
    decided: StoredApproval | None = None
    told: ToolResult | None = None
    trouble: list[str] = field(default_factory=list)

    @property
    def edited(self) -> str:
        return f"{self.ref}-edited"

    @property
    def caller(self) -> Caller:
        agent = "hasty" if self.kind == "expired" else "one"
        return Caller(user_id="ada", permission="user", allowed_modules="*", agent=agent)

    @property
    def call(self) -> ToolCall:
        return ToolCall(tool_name=self.tool, arguments=self.arguments, idempotency_key=f"key of {self.ref}")


def make_cases(count: int, dice: random.Random) -> list[Case]:
    """So many, of all kinds."""
    made = list[Case]()
    for number in range(count):
        (first,) = dice.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))
        (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
        ref = f"case-{number}-{dice.getrandbits(32):08x}"
        waits = {name: dice.choice((0, 0, 20, 200)) for name in ("before_ms", "after_ms")}
        arguments = {"ref": ref, "first": first, "then": "ok", **waits}
        made.append(Case(ref, kind, f"{dice.choice(MODULES)}.once", arguments))
    return made


class Players:
    """Agents and people, each at one of several fleets, as in processes of their own."""

    def __init__(self, fleets: Sequence[ToolFleet], dice: random.Random) -> None:
        self._fleets, self._dice = fleets, dice

    async def play(self, case: Case) -> None:
        """Return when all that the case's agent can be told was told."""
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                case.approval_id = await self._asked(case)
                await self._decide(case)
                case.decided = await self._settled(case)
                case.told = await self._end(case)
        except TimeoutError:
            case.trouble.append(f"no end in {GIVE_UP_SECONDS:.0f} s")
        except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
            case.trouble.append(repr(exc))

    async def _asked(self, case: Case) -> str:
        while case.kind == "cancelled":
            case.handle = await self._fleet().submit(case.call, case.caller, timeout=_TIMEOUT_SECONDS)
            if await case.handle.status() != "done":
                return case.handle.id
            await asyncio.sleep(_PAUSE_SECONDS)
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
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _decide(self, case: Case) -> None:
        bob, eve = _PEOPLE
        decide: dict[Kind, Sequence[Callable[[], Awaitable[object]]]] = {
            "approved": [lambda: self._approve(case, bob)],
            "raced": [lambda: self._approve(case, bob), lambda: self._approve(case, eve)],
            "rejected": [lambda: self._reject(case, bob)],
            "edited": [lambda: self._approve(case, bob, {"ref": case.edited})],
            "contested": [lambda: self._approve(case, bob), lambda: self._reject(case, eve)],
            "expired": [],
            "cancelled": [lambda: self._cancel(case), lambda: self._approve(case, bob)],
            "forged": [lambda: self._forge(case), lambda: self._reject(case, bob)],
        }
        await asyncio.sleep(self._dice.uniform(0, 0.5))
        await asyncio.gather(*(one() for one in decide[case.kind]))

    async def _approve(self, case: Case, by: Approver, arguments: dict[str, Any] | None = None) -> None:
        await self._until_taken(lambda fleet: fleet.approvals.approve(case.approval_id, by, arguments=arguments))

    async def _reject(self, case: Case, by: Approver) -> None:
        await self._until_taken(lambda fleet: fleet.approvals.reject(case.approval_id, by))

    async def _until_taken(self, decide: Callable[[ToolFleet], Awaitable[object]]) -> None:
        """Again and again, as one does who has had no answer; until it is taken, or somebody else's was."""
        while True:
            try:
                await decide(self._fleet())
            except FleetUnavailable:
                await asyncio.sleep(_PAUSE_SECONDS)
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
        while True:
            try:
                found = await self._fleet().approvals.show(case.approval_id)
            except FleetUnavailable:
                found = None
            if found is not None and (found.state != "waiting" or found.place == "done"):
                return found
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _end(self, case: Case) -> ToolResult | None:
        """What the agent is told of an approved call by a repeat; others have ended as they were decided."""
        if case.decided is None or case.decided.state != "approved":
            return None
        while True:
            result = await self._fleet().call(case.call, case.caller, timeout=_TIMEOUT_SECONDS)
            if result.audit.call_id == case.approval_id and "first call with its" not in str(result.error):
                return result
            if (
                result.error_code == "approval_required"
            ):  # the first one has ended with nothing done, and its key is free
                return None
            await asyncio.sleep(_PAUSE_SECONDS)

    def _fleet(self) -> ToolFleet:
        return self._dice.choice(self._fleets)
