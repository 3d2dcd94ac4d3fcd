"""300 programs whose calls people have to approve: none of these runs before somebody has, and none that nobody has."""

import asyncio
import contextlib
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from bed import clock
from bed.fleet import Bed, until
from support.fleet import SIGNING_KEY
from support.module_server import ModuleServer, Request
from toolfleet import ApprovalNotTaken, Approver, Caller, Conversation, ToolCall, ToolFleet
from toolfleet_registry.contracts.jobs import ENDED

PROGRAMS, AT_ONCE = 100, 20  # a seed
EXPIRES_SECONDS = 40
ASKS = {"name": "human_in_the_loop", "approve_tools": ["bank.pay"], "expires_seconds": EXPIRES_SECONDS}
BOSS = Approver("command line", "boss", "admin")
FATES = ("approve", "approve", "reject", "leave", "cancel")
_ASKED = """
try:
    await bank__pay(ref={ref!r})
    out.append("paid")
except RuntimeError as exc:
    out.append(str(exc).partition(" ")[0])
"""
_AT_ONCE = "out += await asyncio.gather(*[paid(f'{ref}-{{k}}') for k in range({count})])"
_HEAD = """
import asyncio
out = []
async def paid(ref):
    try:
        await bank__pay(ref=ref)
        return "paid"
    except RuntimeError as exc:
        return str(exc).partition(" ")[0]
"""


def source_of(random: Random, name: str) -> tuple[str, list[str]]:
    """Return a random program, and the references of its calls that need an approval, in the order of their outcomes."""
    lines, refs = [_HEAD], list[str]()
    for place in range(random.randint(1, 3)):
        ref = f"{name}-{place}"
        match random.choice(["one", "two", "several"]):
            case "one":
                lines.append(_ASKED.format(ref=ref))
                refs.append(ref)
            case "two":
                lines.append(f"await bank__add(ref={ref!r})")
                lines.append(_ASKED.format(ref=ref))
                refs.append(ref)
            case _:
                count = random.randint(2, 3)
                lines.append(_AT_ONCE.format(ref=ref, count=count))
                refs += [f"{ref}-{number}" for number in range(count)]
    return "\n".join([*lines, "return out"]), refs


class People:
    """Who decide what waits, each call as its seed says, after a while. `runs` has what runs unapproved, or twice."""

    def __init__(self, fleet: ToolFleet, seed: int) -> None:
        self.fleet, self._random = fleet, Random(f"people {seed}")
        self.fates, self.runs = dict[str, str](), list[str]()
        self.approved_at = dict[str, float]()
        self.ran_at = defaultdict[str, list[float]](list)
        self.cancelled = set[str]()

    async def pay(self, request: Request) -> dict[str, Any]:
        """Implements the tool that needs an approval."""
        ref = request["arguments"]["ref"]
        self.ran_at[ref].append(clock.monotonic())
        if ref not in self.approved_at or len(self.ran_at[ref]) > 1:
            self.runs.append(ref)
        return {"success": True, "result": ref}

    async def decide(self) -> None:
        """Decide for ever."""
        while True:
            for each in await self.fleet.approvals.list(limit=1_000):
                if each.state == "waiting":
                    with contextlib.suppress(ApprovalNotTaken):  # its program was cancelled a moment ago
                        await self._decide(each.approval_id)
            await asyncio.sleep(5)

    async def _decide(self, approval_id: str) -> None:
        asked = await self.fleet.approvals.show(approval_id)
        ref, user = str(asked.request.arguments["ref"]), asked.call.caller.user_id
        if ref in self.fates:
            return
        self.fates[ref] = fate = self._random.choice(FATES)
        if fate == "approve":
            self.approved_at[ref] = clock.monotonic()
            await self.fleet.approvals.approve(approval_id, BOSS)
        elif fate == "reject":
            await self.fleet.approvals.reject(approval_id, BOSS, reason="No.")
        elif fate == "cancel":
            self.cancelled.add(str(user))
            await self.fleet.programs.cancel(approval_id.rpartition(".")[0], Caller(user_id=user))


@pytest.fixture
async def bank(bed: Bed) -> ModuleServer:
    """A fleet with one module, where its tools add and pay."""
    module = ModuleServer("bank")
    ref = [{"name": "ref", "type": "string", "description": ""}]

    async def add(request: Request) -> dict[str, Any]:
        return {"success": True, "result": request["arguments"]["ref"]}

    module.add("add", add, effect="once", parameters=ref)
    module.add("pay", add, effect="once", parameters=ref)
    agents = {
        "careful": {"middleware": [ASKS]},
        "strict": {"middleware": [ASKS, {**ASKS, "approve_tools": ["programs.run"]}]},
    }
    bed.given |= {"programs": True, "signing_key": SIGNING_KEY, "agents": agents}
    await bed.serve(module)
    await bed.worker()
    await bed.beat()
    return module


@pytest.mark.parametrize("seed", range(3))
async def test_none_runs_unapproved(bed: Bed, bank: ModuleServer, seed: int) -> None:
    """Each program is told what became of each call, and a call runs once if its approval came before; else never."""
    fleet = await bed.agent()
    people, wrong, room = People(fleet, seed), list[str](), asyncio.Semaphore(AT_ONCE)
    bank.tools["bank.pay"] = people.pay
    outcomes = {"approve": "paid", "reject": "approval_denied", "leave": "approval_denied"}

    async def one(number: int) -> None:
        name = f"p{seed}-{number}"
        source, refs = source_of(Random(name), name)
        caller = Caller(user_id=name, permission="user", allowed_modules="*", agent="careful")
        call = ToolCall(tool_name="programs.run", arguments={"source": source})
        async with room:
            talk = Conversation(conversation_id=name, platform="chat")
            result = await fleet.call(call, caller, conversation=talk, timeout=600)
            (listed,) = await fleet.programs.list(caller)
            await until(lambda: _has_ended(fleet, listed.program_id, caller), "the program ends", step=5)
        program = await fleet.programs.get(listed.program_id, caller)
        assert program is not None
        told = result.result if result.success and isinstance(result.result, list) else program.result
        wanted = [outcomes.get(people.fates.get(ref, ""), "") for ref in refs]
        if name not in people.cancelled and told != wanted:
            wrong.append(f"{name}: told {told}, and {[people.fates.get(ref) for ref in refs]}")
        if name in people.cancelled and program.state != "cancelled":
            wrong.append(f"{name} ended as {program}")

    deciding = asyncio.create_task(people.decide())
    await asyncio.gather(*map(one, range(PROGRAMS)))
    await asyncio.sleep(2 * EXPIRES_SECONDS)  # what was left to run would run by now
    assert deciding.cancel()

    assert wrong == []
    assert people.runs == []
    assert {"approve", "reject", "leave", "cancel"} == {*people.fates.values()}


async def test_the_program_itself_may_need_an_approval(bed: Bed, bank: ModuleServer) -> None:
    """Who approves it is shown its source, and approves none of its calls."""
    fleet = await bed.agent()
    caller = Caller(user_id="ada", permission="user", allowed_modules="*", agent="strict")
    source = "return await bank__pay(ref='r1')"
    told = await fleet.call(ToolCall(tool_name="programs.run", arguments={"source": source}), caller)
    assert told.error_code == "approval_required"

    async def waiting() -> list[str]:
        return [each.approval_id for each in await fleet.approvals.list() if each.state == "waiting"]

    await until(waiting, "it waits for people")
    (outer,) = await waiting()
    assert (await fleet.approvals.show(outer)).request.arguments["source"] == source
    assert await fleet.programs.list(caller) == []
    await fleet.approvals.approve(outer, BOSS)
    await until(waiting, "its call waits for people")
    (inner,) = await waiting()
    assert inner != outer
    assert bank.calls("pay") == []
    await fleet.approvals.approve(inner, BOSS)
    (program,) = await fleet.programs.list(caller)
    await until(lambda: _has_ended(fleet, program.program_id, caller), "the program ends")

    assert (await fleet.programs.list(caller))[0].state == "completed"
    assert len(bank.calls("pay")) == 1


async def _has_ended(fleet: ToolFleet, program_id: str, caller: Caller) -> bool:
    program = await fleet.programs.get(program_id, caller)
    return program is None or program.state in ENDED
