"""Programs: a model's Python makes calls of the fleet, each once, however long it waits for them and whoever dies."""

import asyncio
import contextlib
import itertools
import json
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from bed import clock, settling
from bed.fleet import Bed, until
from support.fleet import SIGNING_KEY
from support.module_server import ModuleServer, Request
from support.owls import hang_up
from toolfleet import Approver, Caller, Conversation, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_registry.contracts.programs import ToolProgram
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.calls.audit_trail import set_credential
from toolfleet_tasks.jobs.engine import JobSteps
from toolfleet_tasks.messages.ids import outer_call_of, step_call_id
from toolfleet_tasks.programs import ProgramRecords
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_workers.execution import interpreter, programs

DAY = 86_400.0
ADA, BOB = (Caller(user_id=name, permission="user", allowed_modules="*", agent="careful") for name in ("ada", "bob"))
BOSS = Approver("command line", "boss", "admin")
TALK = Conversation(conversation_id="talk-1", platform="chat")
KEYS = Keys()
SECRET = "under the third owl "
ASKS = {"name": "human_in_the_loop", "approve_tools": ["bank.pay"], "expires_seconds": 6 * DAY}
GIVEN = {"programs": True, "signing_key": SIGNING_KEY, "agents": {"careful": {"middleware": [ASKS]}}}


class Bank:
    """A module whose `add` counts up what it was given, and whose other tools fail, wait, need a yes, or say nothing."""

    def __init__(self) -> None:
        self.server = ModuleServer("bank")
        numbers = {"parameters": [{"name": "n", "type": "integer", "description": ""}]}
        self.server.add("add", self._add, effect="once", **numbers)
        self.server.add("rows", self._rows, effect="read", **numbers)
        self.server.add("fail", self._fail, effect="once", **numbers)
        self.server.add("pay", self._add, effect="once", **numbers)
        seconds = {"parameters": [{"name": "n", "type": "number", "description": ""}]}
        self.server.add("nap", self._nap, effect="once", timeout_seconds=600, **seconds)
        self.server.add("doze", self._nap, effect="once", timeout_seconds=2, **seconds)
        self.server.add("book", self._book, effect="read", **numbers)
        text = [{"name": "text", "type": "string", "description": ""}]
        self.server.add("measure", self._measure, effect="read", parameters=text)
        self.server.add("garble", hang_up, effect="once", **numbers)
        self.server.add("garble-read", hang_up, effect="read", **numbers)
        self.server.add("shelf", self._shelf, effect="read", **numbers)
        schema = {"type": "string", "x-sensitive": True}
        self.server.add("secret", self._secret, effect="read", output_schema=schema, **numbers)
        for status in (500, 502):
            self.server.add(f"says_{status}", partial(self._broken, status), effect="once", **numbers)

    def done(self, method: str = "add") -> list[int]:
        return [call["arguments"]["n"] for call in self.server.calls(method)]

    async def _add(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": {"n": request["arguments"]["n"] + 1}}

    async def _rows(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": [{"n": n} for n in range(request["arguments"]["n"])]}

    async def _fail(self, request: Request) -> dict[str, Any]:
        return {"success": False, "error": "I cannot."}

    async def _book(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": "owls " * 200_000}

    async def _measure(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": len(request["arguments"]["text"])}

    async def _shelf(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": "o" * 100_000}

    async def _secret(self, request: Request) -> dict[str, Any]:
        return {"success": True, "result": SECRET * 3_000}

    async def _broken(self, status: int, request: Request) -> web.StreamResponse:
        return web.Response(status=status, text="gone")

    async def _nap(self, request: Request) -> dict[str, Any]:
        await asyncio.sleep(request["arguments"]["n"])
        return {"success": True, "result": "awake"}


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def fleet(bed: Bed, bank: Bank) -> ToolFleet:
    bed.given |= GIVEN
    await bed.serve(bank.server)
    await bed.worker()
    await bed.beat()
    return await bed.agent()


@pytest.fixture
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a worker read each program again, as another one does."""
    monkeypatch.setattr(programs.ProgramEngine, "remember", lambda *_: None)


async def run(fleet: ToolFleet, source: str, caller: Caller = ADA, **how: Any) -> ToolResult:
    call = ToolCall(tool_name="programs.run", arguments={"source": source})
    return await fleet.call(call, caller, conversation=TALK, **how)


async def value_of(fleet: ToolFleet, source: str, **how: Any) -> Any:
    result = await run(fleet, source, **how)
    assert result.success, result
    return result.result


async def waiting(fleet: ToolFleet, source: str, caller: Caller = ADA) -> str:
    """Run a program that waits for longer than its call may; return its id."""
    told = await value_of(fleet, source, caller=caller, timeout=10)
    assert told["state"] == "waiting"
    return str(told["program"])


async def of(fleet: ToolFleet, program_id: str, caller: Caller = ADA) -> ToolProgram:
    found = await fleet.programs.get(program_id, caller)
    assert found is not None
    return found


async def ended(fleet: ToolFleet, program_id: str, caller: Caller = ADA) -> ToolProgram:
    found: list[ToolProgram] = []

    async def is_over() -> bool:
        found[:] = [await of(fleet, program_id, caller)]
        return found[0].state in ENDED

    await until(is_over, "the program ends", step=1)
    return found[0]


async def later(bed: Bed, seconds: float) -> None:
    """Let days pass, in which no worker runs: the bed would look at every second of theirs."""
    bed.kill_members()
    settling.settle_if_asked()
    clock.move(seconds)
    settling.settle()
    await bed.worker()
    await bed.beat()


async def wakes(fleet: ToolFleet) -> list[tuple[str, Any]]:
    """Return the wake-ups of the conversation that are there by now."""
    heard = list[tuple[str, Any]]()

    async def hear() -> None:
        async for wake in fleet.wakeups.completions("talk-1"):
            heard.append((wake.type, wake.result))

    listening = asyncio.create_task(hear())
    await asyncio.sleep(30)
    listening.cancel()
    await asyncio.wait([listening])
    return heard


async def test_a_program_calls_tools_and_returns_one_value(fleet: ToolFleet, bank: Bank) -> None:
    """Loops, `gather` and errors are Python's; each call is made once, under the program's number and the caller's name."""
    source = """
import asyncio
rows = await bank__rows(n=3)
out = []
for row in rows:
    out.append((await bank__add(n=row["n"]))["n"])
both = await asyncio.gather(bank__add(n=10), bank__add(n=20))
try:
    await bank__fail(n=1)
except RuntimeError as exc:
    said = str(exc)
return {"out": out, "both": both, "said": said}
"""
    before = clock.monotonic()
    value = await value_of(fleet, source)

    assert value["out"] == [1, 2, 3]
    assert value["both"] == [{"n": 11}, {"n": 21}]
    assert value["said"].startswith("module_error (effect unknown): I cannot.")
    assert bank.done() == [0, 1, 2, 10, 20]
    assert {call["user_id"] for call in bank.server.requests} == {"ada"}
    assert clock.monotonic() - before < 1
    (program,) = await fleet.programs.list(ADA)
    program = await of(fleet, program.program_id)
    assert [call.call_id for call in program.calls] == [f"{program.program_id}.{n}" for n in range(1, 8)]
    assert [call.state for call in program.calls] == ["succeeded"] * 6 + ["failed"]
    assert await wakes(fleet) == []


async def test_a_program_that_waits_for_people_wakes_its_conversation(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """Its caller is told that it waits, no slot is held, and five days later it goes on where it was."""
    program_id = await waiting(fleet, "a = await bank__add(n=1)\nb = await bank__pay(n=a['n'])\nreturn [a, b]")
    await later(bed, 5 * DAY)
    assert bank.done("pay") == []
    assert (await of(fleet, program_id)).state == "waiting"
    (asked,) = await fleet.approvals.list()
    assert (await fleet.approvals.show(asked.approval_id)).request.arguments == {"n": 2}
    assert await wakes(fleet) == []
    await fleet.approvals.approve(asked.approval_id, BOSS)
    program = await ended(fleet, program_id)

    assert (program.state, program.result) == ("completed", [{"n": 2}, {"n": 3}])
    assert (bank.done(), bank.done("pay")) == ([1], [2])
    assert await wakes(fleet) == [("job.completed", [{"n": 2}, {"n": 3}])]


async def test_a_model_is_shown_its_programs_by_a_tool(fleet: ToolFleet, bank: Bank) -> None:
    """Where nothing wakes it, it reads the end; another user's program does not exist."""
    program_id = await waiting(fleet, "return await bank__pay(n=1)")
    show = ToolCall(tool_name="programs.show", arguments={"program": program_id})
    before = (await fleet.call(show, ADA)).result
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    await ended(fleet, program_id)
    after, others = (await fleet.call(show, ADA)).result, await fleet.call(show, BOB)

    assert (before["state"], [call["tool_name"] for call in before["calls"]]) == ("waiting", ["bank.pay"])
    assert (after["state"], after["result"]) == ("completed", {"n": 2})
    assert (others.success, others.error_code) == (False, "invalid_arguments")


@pytest.mark.parametrize("how", ["rejected", "expired"])
async def test_what_people_refuse_is_an_error_in_the_program(bed: Bed, fleet: ToolFleet, bank: Bank, how: str) -> None:
    """It is not run, and the program decides what to do without it."""
    source = "try:\n    await bank__pay(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
    program_id = await waiting(fleet, source)
    if how == "rejected":
        (asked,) = await fleet.approvals.list()
        await fleet.approvals.reject(asked.approval_id, BOSS, reason="No.")
    else:
        await later(bed, 6 * DAY)
    program = await ended(fleet, program_id)

    assert str(program.result).startswith("approval_denied (effect none)")
    assert bank.done("pay") == []


async def test_a_cancelled_program_takes_back_what_waits(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """What has begun runs to its end; what waits for people or a worker is never run, and nobody is woken."""
    await fleet.queues.pause("bank")
    source = "import asyncio\nawait asyncio.gather(bank__pay(n=1), bank__add(n=2), bank__add(n=3))"
    program_id = await waiting(fleet, source)
    assert await fleet.programs.cancel(program_id, BOB) is None
    assert await fleet.programs.get(program_id, BOB) is None
    await fleet.programs.cancel(program_id, ADA)
    program = await ended(fleet, program_id)
    await fleet.queues.resume("bank")
    await asyncio.sleep(60)

    assert (program.state, [call.state for call in program.calls]) == ("cancelled", ["withdrawn"] * 3)
    assert bank.server.requests == []
    assert [each.state for each in await fleet.approvals.list()] == []
    assert await wakes(fleet) == []


async def test_a_program_that_is_over_takes_back_what_waits(fleet: ToolFleet, bank: Bank) -> None:
    """However it has ended: nobody would hear of what is approved or run after that."""
    await fleet.queues.pause("bank")
    source = """
import asyncio
async def bad():
    await bank__add(n='x')
await asyncio.gather(bank__pay(n=1), bank__add(n=2), bad())
"""
    result = await run(fleet, source)
    await asyncio.sleep(5)
    assert [each.state for each in await fleet.approvals.list()] == []
    await fleet.queues.resume("bank")
    await asyncio.sleep(60)

    assert "invalid_arguments (effect none)" in str(result.error)
    assert bank.server.requests == []


async def test_an_end_is_told_once(fleet: ToolFleet, bank: Bank, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies after its program was to wake the conversation, and before it says so, leaves that to the next."""
    detached, held = programs.ProgramExecutor._detached, list[Any]()

    async def slow(executor: Any, *given: Any) -> Any:
        answer = await detached(executor, *given)
        if not held:
            held.append(answer)
            await asyncio.sleep(DAY)
        return answer

    monkeypatch.setattr(programs.ProgramExecutor, "_detached", slow)
    running = asyncio.create_task(run(fleet, "return await bank__pay(n=1)", timeout=3_000))
    await until(lambda: held, "it is to wake its conversation", step=1)
    bed.kill_members()
    await bed.worker()
    await bed.beat()
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    told = (await running).result

    assert await wakes(fleet) == [("job.completed", {"n": 2})]
    assert (told["state"], bank.done("pay")) == ("waiting", [1])


async def test_a_program_ends_with_its_call(fleet: ToolFleet, bank: Bank) -> None:
    """Who cancels the call of `programs.run` before it has an answer cancels the program."""
    call = ToolCall(tool_name="programs.run", arguments={"source": "await bank__nap(n=20)\nawait bank__add(n=1)"})
    handle = await fleet.submit(call, ADA, conversation=TALK)
    await until(lambda: bank.server.running, "its call runs")
    await handle.cancel()
    (program,) = await fleet.programs.list(ADA)

    assert (await ended(fleet, program.program_id)).state == "cancelled"
    await asyncio.sleep(60)
    assert bank.done() == []


async def test_a_program_ends_with_its_call_also_if_it_looks_late(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """Its worker has died, say: who has cancelled the call has had its result by then."""
    call = ToolCall(tool_name="programs.run", arguments={"source": "await bank__nap(n=20)\nawait bank__add(n=1)"})
    handle = await fleet.submit(call, ADA, conversation=TALK)
    await until(lambda: bank.server.running, "its call runs")
    bed.kill_members()
    await handle.cancel()
    await asyncio.sleep(30)
    await bed.worker()
    await bed.beat()
    (program,) = await fleet.programs.list(ADA)

    assert (await ended(fleet, program.program_id)).state == "cancelled"
    assert bank.done() == []


async def test_a_program_ends_with_its_time(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """After its seven days it has timed out: what waits is withdrawn, and its conversation hears of it."""
    program_id = await waiting(fleet, "await bank__pay(n=1)\nawait bank__pay(n=2)")
    await later(bed, 3 * DAY)
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    await until(partial(_waits, fleet), "the second approval")
    await later(bed, 4 * DAY)
    program = await ended(fleet, program_id)

    assert (program.state, program.error_code) == ("timed_out", "timed_out")
    assert [call.state for call in program.calls] == ["succeeded", "withdrawn"]
    assert bank.done("pay") == [1]
    assert [kind for kind, _ in await wakes(fleet)] == ["job.timed_out"]
    assert 0 < bed.ask("TTL", KEYS.program(program_id)) <= 7 * DAY


async def test_an_unknown_outcome_ends_the_program_unless_it_asks_for_it(fleet: ToolFleet, bank: Bank) -> None:
    """Its end names the call and those before it; a tool that may be repeated raises instead."""
    result = await run(fleet, "await bank__add(n=1)\nawait bank__garble(n=2)\nawait bank__add(n=3)")
    assert (result.error_code, result.effect_state) == ("outcome_unknown", "unknown")
    assert "The outcome of its call 2, bank.garble, is unknown" in str(result.error)
    assert "Calls made: 1 bank.add succeeded, 2 bank.garble unknown" in str(result.error)
    assert bank.done() == [1]

    told = await value_of(fleet, 'return await bank__garble(n=2, on_unknown="return")')
    assert (told["outcome_unknown"], told["call"]) == (True, 1)
    source = "try:\n    await bank__garble_read(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
    assert "(effect unknown)" in await value_of(fleet, source)


AGAIN = """
for n in range(3):
    try:
        await bank__{}(n=20)
    except RuntimeError:
        pass
"""


@pytest.mark.parametrize("method", ["nap", "says_500", "says_502"])
async def test_a_module_that_has_not_answered_leaves_the_outcome_unknown(bed: Bed, bank: Bank, method: str) -> None:
    """Whatever the error's code is: a program that tries again would do it twice."""
    bed.given |= GIVEN
    module = await bed.serve(bank.server)
    await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    running = asyncio.create_task(run(fleet, AGAIN.format(method)))
    if method == "nap":
        await until(lambda: bank.server.running, "its call runs")
        port = int(bank.server.url.rpartition(":")[2])
        module.kill()
        await bed.serve(bank.server, port=port)
    result = await running

    assert (result.error_code, result.effect_state) == ("outcome_unknown", "unknown"), result
    assert len(bank.server.calls(method)) == 1


async def test_a_call_in_its_queue_is_not_refused_and_run(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """What the program is told of it holds: a call that is refused by now is taken out of its queue before."""
    await fleet.queues.pause("bank")
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        key_id = keys.create(KeyDraft(user_id="ada", permission="user", allowed_modules="*"), COMMAND_LINE).key.id
        set_credential(f"key {key_id}", "ada")
        source = "try:\n    await bank__add(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
        program_id = await waiting(fleet, source)
        keys.revoke([key_id])
        program = await ended(fleet, program_id)
    await fleet.queues.resume("bank")
    await asyncio.sleep(60)

    assert str(program.result).startswith("permission_denied (effect none)")
    assert bank.done() == []


async def test_a_call_whose_message_is_refused_wakes_its_program(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """Only its id is known where its message cannot be opened."""
    await fleet.queues.pause("bank")
    source = "try:\n    await bank__add(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
    program_id = await waiting(fleet, source)
    (message,) = (json.loads(each) for each in bed.ask("LRANGE", "tools.bank", 0, -1))
    forged = b64decode(message["body"]).replace(b"careful", b"carefil")
    bed.ask("LSET", "tools.bank", 0, json.dumps({**message, "body": b64encode(forged).decode()}))
    before = clock.monotonic()
    await fleet.queues.resume("bank")
    program = await ended(fleet, program_id)

    assert str(program.result).startswith("permission_denied (effect none)")
    assert clock.monotonic() - before < 5


async def test_a_call_that_was_refused_is_not_run_by_another_worker(
    bed: Bed, fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the worker that refused it is held up before it says so, others find the refusal, not a call to publish."""
    await bed.worker()
    prepare, step, asked, held = JobSteps.prepare, programs._Course._step, itertools.count(), list[Any]()

    async def prepared(steps: JobSteps, spec: Any, call: ToolCall, *given: Any, **how: Any) -> Any:
        if next(asked):  # nobody else would refuse it
            return await prepare(steps, spec, call, *given, **how)
        return ToolResult.refused(call.tool_name, "permission_denied", "Not yet.")

    async def slow(course: Any, program: Any, ended: Any, *given: Any, **how: Any) -> bool:
        if ended and not held:
            held.append(course)
            await asyncio.sleep(60)
        return await step(course, program, ended, *given, **how)

    monkeypatch.setattr(JobSteps, "prepare", prepared)
    monkeypatch.setattr(programs._Course, "_step", slow)
    source = "try:\n    return await bank__add(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
    program = await ended(fleet, await waiting(fleet, source))
    assert held
    await asyncio.sleep(90)

    assert str(program.result).startswith("permission_denied (effect none)")
    assert bank.done() == []


async def test_a_call_that_waits_in_its_queue_is_no_other_one(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments may be prepared otherwise when it is published again, with the time of day, say: what was stored first counts."""
    numbers, prepare = itertools.count(7), JobSteps.prepare

    async def prepared(steps: JobSteps, *given: Any, **how: Any) -> Any:
        call = await prepare(steps, *given, **how)
        return call if isinstance(call, ToolResult) else call.model_copy(update={"arguments": {"n": next(numbers)}})

    monkeypatch.setattr(JobSteps, "prepare", prepared)
    await fleet.queues.pause("bank")
    program_id = await waiting(fleet, "return await bank__add(n=1)")
    await asyncio.sleep(60)
    await fleet.queues.resume("bank")
    program = await ended(fleet, program_id)

    assert next(numbers) > 9
    assert (program.result, bank.done()) == ({"n": 8}, [7])


async def test_a_step_that_cannot_be_stored_ends_its_program(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever hinders each worker, or ends it: it is begun so often, not until the program expires."""
    begun = list[float]()

    async def fails(*_: Any, **__: Any) -> bool:
        begun.append(clock.monotonic())
        raise KeyError("nobody has thought of that")

    monkeypatch.setattr(programs._Course, "_suspend", fails)
    program = await ended(fleet, await waiting(fleet, "await bank__add(n=1)"))

    assert (program.state, program.error_code) == ("failed", "internal")
    assert len(begun) == 6
    assert begun[-1] - begun[0] < 300


async def test_a_step_whose_result_cannot_be_read_ends_its_program(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it is a part of the step: a result whose connection is lost each time is tried so often."""
    read, lost = PipelinedConnection.read, 0

    async def cut(connection: PipelinedConnection, *command: Any, **how: Any) -> Any:
        nonlocal lost
        if command[0] == "GET" and str(command[1]).endswith(".2"):
            lost += 1
            raise RedisConnectionLost("It was cut.", sent=True)
        return await read(connection, *command, **how)

    monkeypatch.setattr(PipelinedConnection, "read", cut)
    program_id = await waiting(fleet, "await bank__rows(n=1)\nreturn len(await bank__shelf(n=1))")
    program = await ended(fleet, program_id)

    assert (program.state, program.error_code) == ("failed", "internal")
    assert lost <= 6


async def test_of_a_step_that_makes_another_call_nothing_more_is_made(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only publishing shows it; the calls of a step are published at once after its first."""
    published = programs._Course._published

    async def diverges(course: Any, program: Any, call: Any, **how: Any) -> bool:
        if call.call_id.endswith(".1"):
            raise programs._Diverged(call.tool_name)
        return await published(course, program, call, **how)

    monkeypatch.setattr(programs._Course, "_published", diverges)
    result = await run(fleet, "import asyncio\nawait asyncio.gather(*[bank__add(n=n) for n in range(5)])")
    await asyncio.sleep(60)

    assert (result.error_code, bank.done()) == ("conflict", [])


async def test_a_step_that_is_interrupted_at_times_goes_on(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tries are those of one step: a program of many steps may lose many workers."""
    suspend, begun = programs._Course._suspend, Counter[int]()

    async def fails_first(course: Any, program: Any, *given: Any) -> bool:
        begun[program.place.step] += 1
        if begun[program.place.step] < 4:
            raise KeyError("it is a bad day")
        return await suspend(course, program, *given)

    monkeypatch.setattr(programs._Course, "_suspend", fails_first)
    program_id = await waiting(fleet, "for n in range(4):\n    await bank__add(n=n)\nreturn 'well'")

    assert (await ended(fleet, program_id)).result == "well"
    assert bank.done() == [0, 1, 2, 3]


async def test_a_step_that_waits_for_its_turn_was_not_begun(
    bed: Bed, fleet: ToolFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many workers wait with it, for as long as steps of others take."""
    turn = asyncio.Lock()
    monkeypatch.setattr(programs, "_MOST_TRIES", 1)
    monkeypatch.setattr(programs.ProgramEngine, "turn", lambda *_: turn)
    for _ in range(2):
        await bed.worker()
    async with turn:
        program_id = await waiting(fleet, "return 1")
        await asyncio.sleep(180)

    assert (await ended(fleet, program_id)).result == 1


async def test_a_call_whose_limit_is_over_for_longer_than_it_waits_is_refused(
    fleet: ToolFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program hears why at once, and not that it has expired."""
    over = ToolResult.refused("bank.add", "rate_limited", "Not today.").model_copy(
        update={"retry_after_seconds": 3600.0}
    )

    async def published(*_: Any, **__: Any) -> ToolResult:
        return over

    monkeypatch.setattr(JobSteps, "publish", published)
    source, before = (
        "try:\n    await bank__add(n=1)\nexcept RuntimeError as exc:\n    return str(exc)",
        clock.monotonic(),
    )

    assert str(await value_of(fleet, source)).startswith("rate_limited (effect none)")
    assert clock.monotonic() - before < 5


async def test_a_paused_program_goes_on_later_with_a_bounded_part_of_its_results(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its queue is paused it stands still; of what has ended by then, a step takes some megabytes into its worker."""
    handed, resume = list[int](), interpreter.Interpreter.resume

    async def noted(self: Any, snapshot: bytes, replies: Any, **how: Any) -> Any:
        handed.append(len(replies))
        return await resume(self, snapshot, replies, **how)

    monkeypatch.setattr(interpreter.Interpreter, "resume", noted)
    monkeypatch.setattr(programs, "_MOST_REPLIES_BYTES", 400_000)
    await fleet.queues.pause("bank")
    source = "import asyncio\nall = await asyncio.gather(*[bank__shelf(n=n) for n in range(12)])\n"
    program_id = await waiting(fleet, source + "return [len(each) for each in all]")
    await fleet.queues.pause("programs")
    await asyncio.sleep(5)
    await fleet.queues.resume("bank")
    await until(lambda: len(bank.server.calls("shelf")) == 12, "its calls run")
    await asyncio.sleep(120)
    assert (handed, (await of(fleet, program_id)).state) == ([], "waiting")
    await fleet.queues.resume("programs")

    assert (await ended(fleet, program_id)).result == [100_000] * 12
    assert handed == [4, 4, 4]


async def test_a_caller_whose_call_ends_without_its_program_is_woken(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """The workers that waited for it have died, say: it has heard that the outcome is unknown, and hears the end."""
    running = asyncio.create_task(run(fleet, "return await bank__pay(n=1)", timeout=3_000))
    await until(partial(_waits, fleet), "the approval")
    (program,) = await fleet.programs.list(ADA)
    bed.ask("HSET", KEYS.call(outer_call_of(program.program_id)), "state", "done")
    running.cancel()
    await asyncio.wait([running])
    await asyncio.sleep(30)
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    program = await ended(fleet, program.program_id)

    assert (program.state, program.result) == ("completed", {"n": 2})
    assert await wakes(fleet) == [("job.completed", {"n": 2})]


async def test_a_state_that_nobody_here_can_read_is_cancelled_with_its_calls(
    bed: Bed, fleet: ToolFleet, bank: Bank
) -> None:
    """The numbers that wait are known without it: none of them runs after the end."""
    program_id = await waiting(fleet, "import asyncio\nawait asyncio.gather(bank__pay(n=1), bank__pay(n=2))")
    bed.ask("HSET", KEYS.program(program_id), "told", "another key has sealed this")
    await fleet.programs.cancel(program_id, ADA)
    program = await ended(fleet, program_id)

    assert [call.state for call in program.calls] == ["withdrawn", "withdrawn"]
    assert [each.state for each in await fleet.approvals.list()] == []


async def test_a_module_that_is_being_replaced_is_waited_for(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some seconds, which cost the call none of its time; a module that does not exist is an error then."""
    prepare, until_then = JobSteps.prepare, fleet_clock.now() + 4

    async def prepared(steps: JobSteps, spec: Any, call: ToolCall, *given: Any, **how: Any) -> Any:
        if fleet_clock.now() < until_then:
            return ToolResult.refused(call.tool_name, "unknown_module", "There is no such module.")
        return await prepare(steps, spec, call, *given, **how)

    monkeypatch.setattr(JobSteps, "prepare", prepared)
    assert await value_of(fleet, "return await bank__nap(n=12)") == "awake"


async def test_what_is_busy_is_tried_soon_whatever_else_is_known(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of another call, in the same step, does not put it off."""
    publish, busy = JobSteps.publish, [True]

    async def published(steps: JobSteps, call: Any, *given: Any, **how: Any) -> Any:
        if call.arguments["n"] == 1 and busy:
            busy.clear()
            return ToolResult.refused(call.tool_name, "busy", "Later.")
        return await publish(steps, call, *given, **how)

    monkeypatch.setattr(JobSteps, "publish", published)
    source = (
        "import asyncio\nasync def bad():\n    try:\n        await bank__add(n='x')\n    except RuntimeError:\n        "
    )
    source += "pass\nawait asyncio.gather(bank__add(n=1), bad())"
    before = clock.monotonic()
    await value_of(fleet, source)

    assert clock.monotonic() - before < 12


async def test_what_is_busy_is_tried_soon_though_its_program_goes_on(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step by another call's end leaves it as soon due as it was."""
    publish, again = JobSteps.publish, list[bool]()

    async def published(steps: JobSteps, call: Any, *given: Any, **how: Any) -> Any:
        if call.arguments["n"] == 7:
            again.append(how["again"])
            if len(again) == 1:
                return ToolResult.refused(call.tool_name, "busy", "Later.")
        return await publish(steps, call, *given, **how)

    monkeypatch.setattr(JobSteps, "publish", published)
    source = "import asyncio\nasync def two():\n    await bank__nap(n=0.2)\n    await bank__add(n=2)\n"
    before = clock.monotonic()
    await value_of(fleet, source + "await asyncio.gather(bank__add(n=7), two())")

    assert again == [False, False]  # RabbitMQ keeps what was published before, so that it is not published soon again
    assert bank.done() == [2, 7]
    assert clock.monotonic() - before < 12


async def test_a_call_has_its_time_from_its_publication(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that die before they publish it, one after the other, cost it none."""
    publish, until_then = JobSteps.publish, fleet_clock.now() + 300

    async def dies(steps: JobSteps, *given: Any, **how: Any) -> Any:
        if fleet_clock.now() < until_then:
            raise KeyError("its worker dies")
        return await publish(steps, *given, **how)

    monkeypatch.setattr(JobSteps, "publish", dies)
    program_id = await waiting(fleet, "return await bank__add(n=1)")

    assert (await ended(fleet, program_id)).result == {"n": 2}
    assert bank.done() == [1]


LOSSES: dict[str, Callable[[Bed], object]] = {
    "another server": lambda bed: bed.redis.restart(),
    "other data": lambda bed: bed.ask("SET", KEYS.data_id, "other"),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_call_whose_record_is_lost_is_not_made_again(bed: Bed, fleet: ToolFleet, bank: Bank, loss: str) -> None:
    """Whether a Redis that has taken over has forgotten it, or never knew it, nobody can say: its outcome is unknown."""
    program_id = await _lost(bed, fleet, bank, loss)
    program = await ended(fleet, program_id)

    assert (program.state, program.error_code) == ("failed", "outcome_unknown")
    assert [call.state for call in program.calls] == ["unknown"]
    assert len(bank.server.calls("doze")) == 1


async def test_of_a_lost_record_a_cancelled_program_says_nothing(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """Its call may have been begun: it is left, not withdrawn."""
    program_id = await _lost(bed, fleet, bank, "other data")
    await fleet.programs.cancel(program_id, ADA)

    assert [call.state for call in (await ended(fleet, program_id)).calls] == ["left"]


async def _lost(bed: Bed, fleet: ToolFleet, bank: Bank, loss: str) -> str:
    """Return the id of a program whose call runs, and is forgotten, with its message and all workers."""
    source = "try:\n    await bank__doze(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
    await fleet.submit(ToolCall(tool_name="programs.run", arguments={"source": source}), ADA, conversation=TALK)
    await until(lambda: bank.server.running, "its call runs")
    (program,) = await fleet.programs.list(ADA)
    bed.kill_members()
    bed.ask("DEL", KEYS.call(f"{program.program_id}.1"), "unacked", "unacked_index")
    LOSSES[loss](bed)
    await bed.worker()
    await bed.beat()
    return program.program_id


async def test_what_waits_in_its_queue_outlives_another_server(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """A Redis that begins again with all that it had has lost nothing."""
    await fleet.queues.pause("bank")
    program_id = await waiting(fleet, "return await bank__nap(n=1)")
    bed.redis.restart()
    await asyncio.sleep(60)
    await until(partial(_resumed, fleet), "its queue goes on", step=1)

    assert (await ended(fleet, program_id)).result == "awake"
    assert len(bank.server.calls("nap")) == 1


@pytest.mark.usefixtures("nothing_at_hand")
async def test_two_workers_at_one_program_are_no_fault(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has moved it before the other one has read its state, which reads it again then, and logs no error."""
    read, raced = programs._Course._state, list[int]()

    async def after_another(course: Any, program: Any, **how: Any) -> Any:
        if program.place.step and not raced:
            raced.append(program.place.step)
            await programs._Course(course._engine, course._session, course._id, is_due=False).follow()
        return await read(course, program, **how)

    monkeypatch.setattr(programs._Course, "_state", after_another)
    with capture_logs() as logs:
        value = await value_of(fleet, "await bank__add(n=1)\nreturn await bank__add(n=2)")

    assert (raced, value, bank.done()) == ([1], {"n": 3}, [1, 2])
    assert [entry for entry in logs if entry["event"] == "program_refused"] == []


async def test_one_user_does_not_take_all_processes(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker one program of a user's has a step at a time."""
    at_work, most, begin = Counter[str](), Counter[str](), interpreter.Interpreter.begin

    async def noted(self: Any, source: str, **how: Any) -> Any:
        user = source.partition("#")[2]
        at_work[user] += 1
        most[user], most["all"] = max(most[user], at_work[user]), max(most["all"], at_work.total())
        await asyncio.sleep(2)
        at_work[user] -= 1
        return await begin(self, source, **how)

    monkeypatch.setattr(interpreter.Interpreter, "begin", noted)
    programs_of = [run(fleet, "return 1#ada") for _ in range(3)] + [run(fleet, "return 1#bob", BOB)]

    assert all(each.success for each in await asyncio.gather(*programs_of))
    assert (most["ada"], most["bob"], most["all"]) == (1, 1, 2)


async def test_a_program_of_a_worker_with_one_slot_does_not_wait_in_it(bed: Bed, bank: Bank) -> None:
    """Its own calls need the slot: its caller is told at once that it waits."""
    bed.given |= {**GIVEN, "worker_concurrency": 1}
    await bed.serve(bank.server)
    await bed.worker()
    await bed.beat()
    fleet, before = await bed.agent(), clock.monotonic()
    program_id = await waiting(fleet, "return await bank__add(n=1)")

    assert (await ended(fleet, program_id)).result == {"n": 2}
    assert clock.monotonic() - before < 10


async def test_a_name_that_two_tools_have_is_none(bed: Bed, bank: Bank) -> None:
    """Which of them the model meant is not guessed."""
    bank.server.add("add-up", bank._add, effect="once")
    bank.server.add("add_up", bank._add, effect="once")
    bed.given |= GIVEN
    await bed.serve(bank.server)
    await bed.worker()
    fleet = await bed.agent()
    result = await run(fleet, "await bank__add_up(n=1)")

    assert "NameError" in str(result.error)
    assert bank.server.requests == []


async def test_another_call_under_a_number_ends_the_program(
    bed: Bed, fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older record of a program, put back, is a repeated step; one that makes another call makes nothing."""
    calls = "bank__add(n=1) bank__pay(n=2) bank__add(n=3) bank__pay(n=4)"
    program_id = await waiting(fleet, "\n".join(f"await {call}" for call in calls.split()))
    name = KEYS.program(program_id)
    monkeypatch.setattr(ProgramRecords, "drop", lambda *_: None)  # a Redis that is restored has their results, too
    old = bed.ask("HMGET", name, "at", "told")
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    await until(partial(_waits, fleet), "the second approval")
    made, real = len(bank.server.requests), interpreter._called

    def another(*given: Any) -> Any:
        called = real(*given)
        assert isinstance(called, interpreter.Called)
        return interpreter.Called(called.monty_id, called.tool_name, {"n": 99})

    monkeypatch.setattr(interpreter, "_called", another)
    bed.ask("HSET", name, "at", old[0], "told", old[1])
    bed.ask("ZADD", KEYS.programs_due, 0, program_id)
    program = await ended(fleet, program_id)

    assert (program.state, program.error_code) == ("failed", "conflict")
    assert len(bank.server.requests) == made == 3


async def _resumed(fleet: ToolFleet) -> bool:
    with contextlib.suppress(FleetUnavailable):
        await fleet.queues.resume("bank")
        return True
    return False


async def _waits(fleet: ToolFleet) -> bool:
    return any(each.state == "waiting" for each in await fleet.approvals.list())


REFUSED: dict[str, tuple[str, str, str]] = {
    "a syntax error": ("def", "invalid_arguments", "SyntaxError"),
    "an error": ("await bank__add(n=1)\n1 / 0", "module_error", "ZeroDivisionError"),
    "no await": ("bank__add(n=1)\nreturn 1", "module_error", "write `await`"),
    "no tool": ("await bank__nothing(n=1)", "module_error", "unknown_tool (effect none)"),
    "no module": ("await bonk__add(n=1)", "module_error", "unknown_module (effect none)"),
    "bad arguments": ("await bank__add(n='x')", "module_error", "invalid_arguments (effect none)"),
    "a program": ("await programs__run(source='1')", "module_error", "may call 'programs.run'"),
    "too many calls": ("for n in range(200):\n    await bank__rows(n=n % 2)", "module_error", "more than 100 calls"),
    "no end": (
        "while True:\n    try:\n        await bank__rows(n=1)\n    except BaseException:\n        pass",
        "module_error",
        "more than 100 calls",
    ),
    "too many at once": (
        "import asyncio\nawait asyncio.gather(*[bank__add(n=n) for n in range(101)])", "module_error", "more than 100 calls"
    ),
    "too much state": ("x = 'a' * 2_200_000\nawait bank__add(n=1)", "module_error", "keep large values elsewhere"),
    "too large a value": ("return 'a' * 2_200_000", "module_error", "Its value has"),
    "no JSON": ("return {1, 2}", "module_error", "no JSON"),
    "a loop": ("while True:\n    pass", "module_error", "Time"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_program_that_cannot_go_on_fails(fleet: ToolFleet, bank: Bank, name: str) -> None:
    """With a text that tells its author what to change, and whether something was done."""
    source, code, words = REFUSED[name]
    result = await run(fleet, source)

    assert (result.success, result.error_code) == (False, code), result
    assert words in str(result.error)
    is_done = name in {"an error", "too many calls", "no end"}
    assert result.effect_state == ("done" if is_done else "none")
    assert len(bank.done()) == (name == "an error")


async def test_a_source_or_a_user_may_be_wrong(bed: Bed, fleet: ToolFleet) -> None:
    """Too long a source, a caller without a user, and a user with too many programs are refused before anything is made."""
    long = await run(fleet, "#" * 70_000)
    wide = await run(fleet, "x = 'ä" + "ä" * 40_000 + "'")
    nobody = await run(fleet, "return 1", Caller(permission="user", allowed_modules="*"))

    assert [each.error_code for each in (long, wide, nobody)] == ["invalid_arguments"] * 3
    assert {each.effect_state for each in (long, wide, nobody)} == {"none"}
    assert bed.ask("KEYS", f"{KEYS.begin}program*") == []


async def test_a_user_may_have_so_many_programs(bed: Bed, bank: Bank) -> None:
    """One more is `busy`, and another user's is not."""
    bed.given |= {**GIVEN, "programs": {"waiting": 2}}
    await bed.serve(bank.server)
    await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    ids = [await waiting(fleet, "await bank__pay(n=1)") for _ in range(2)]
    refused = await run(fleet, "return 1")
    assert (refused.error_code, refused.effect_state) == ("busy", "none")
    assert await value_of(fleet, "return 1", caller=BOB) == 1
    await fleet.programs.cancel(ids[0], ADA)
    await ended(fleet, ids[0])
    assert await value_of(fleet, "return 1") == 1


async def test_rights_are_those_of_the_moment_of_a_call(fleet: ToolFleet, bank: Bank) -> None:
    """A tool that asks for more by then refuses the program's next call of it."""
    source = """
await bank__add(n=1)
await bank__pay(n=2)
try:
    await bank__add(n=3)
except RuntimeError as exc:
    return str(exc)
"""
    program_id = await waiting(fleet, source)
    add = next(tool for tool in bank.server.definitions if tool["name"] == "bank.add")
    add["required_permission"] = "admin"
    await fleet.modules.refresh()
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    program = await ended(fleet, program_id)

    assert str(program.result).startswith("permission_denied (effect none)")
    assert bank.done() == [1]


async def test_a_revoked_key_makes_no_more_calls(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """The key by which a program was made is looked up before each call of it."""
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        key_id = keys.create(KeyDraft(user_id="ada", permission="user", allowed_modules="*"), COMMAND_LINE).key.id
        set_credential(f"key {key_id}", "ada")
        ids = [
            await waiting(fleet, "await bank__add(n=1)\nawait bank__pay(n=2)\nawait bank__add(n=3)") for _ in range(2)
        ]
        await asyncio.sleep(10)
        for each in [each for each in await fleet.approvals.list() if each.approval_id.startswith(ids[0])]:
            await fleet.approvals.approve(each.approval_id, BOSS)
        assert (await ended(fleet, ids[0])).state == "completed"
        keys.revoke([key_id])
        await asyncio.sleep(10)
        for each in [each for each in await fleet.approvals.list() if each.state == "waiting"]:
            await fleet.approvals.approve(each.approval_id, BOSS)
        program = await ended(fleet, ids[1])

    assert (program.state, program.error_code) == ("failed", "module_error")
    assert "permission_denied (effect none): Tool call refused: the key" in str(program.error)
    assert bank.done() == [1, 1, 3]


async def test_a_large_result_goes_in_by_handle(bed: Bed, fleet: ToolFleet, bank: Bank, tmp_path: Path) -> None:
    """In a fleet with a store a program gets its preview, and can pass its handle on; without one, an error."""
    source = "try:\n    return await bank__book(n=1)\nexcept RuntimeError as exc:\n    return str(exc)"
    assert str(await value_of(fleet, source)).startswith("result_too_large (effect done)")
    bed.kill_members()
    bed.given["artifact_store"] = str(tmp_path)
    await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    await fleet.modules.refresh()
    preview = str(await value_of(fleet, source))

    handed = r"""
import re
shown = await bank__book(n=1)
handle = re.search(r"artifact (\S+),", shown).group(1)
return [len(shown), await bank__measure(text={"$artifact": handle})]
"""
    shown, measured = await value_of(fleet, handed)

    assert "artifact" in preview
    assert len(preview) == shown < 10_000
    assert measured == 1_000_000
    assert bank.server.calls("measure")[0]["arguments"]["text"] == "owls " * 200_000


async def test_a_large_value_wakes_its_conversation_with_a_handle(bed: Bed, bank: Bank, tmp_path: Path) -> None:
    """In a fleet with a store; what it is there for goes on in the next program, say."""
    bed.given |= {**GIVEN, "artifact_store": str(tmp_path)}
    await bed.serve(bank.server)
    await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    program_id = await waiting(fleet, "await bank__pay(n=1)\nreturn 'owls ' * 20_000")
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    program = await ended(fleet, program_id)
    ((kind, told),) = await wakes(fleet)
    handle = re.search(r"artifact (\S+),", str(told))
    assert handle is not None
    source = f"return await bank__measure(text={{'$artifact': '{handle[1]}'}})"

    assert (kind, len(str(told)) < 10_000, program.result) == ("job.completed", True, told)
    assert await value_of(fleet, source) == 100_000


async def test_a_worker_has_at_hand_what_it_has_stored(
    bed: Bed, fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads a program that begins, one that has ended, and one that others have moved; of a step nothing is done twice."""
    reads, begun, read, resume = 0, 0, ProgramRecords.read, interpreter.Interpreter.resume

    async def counted(records: ProgramRecords, program_id: str) -> Any:
        nonlocal reads
        reads += 1
        return await read(records, program_id)

    async def noted(self: Any, *given: Any, **how: Any) -> Any:
        nonlocal begun
        begun += 1
        return await resume(self, *given, **how)

    monkeypatch.setattr(ProgramRecords, "read", counted)
    monkeypatch.setattr(interpreter.Interpreter, "resume", noted)
    source = "for n in range(20):\n    await bank__rows(n=n)"
    await value_of(fleet, source)
    assert (reads <= 3, begun) == (True, 20)

    for _ in range(3):
        await bed.worker()
    reads = begun = 0
    await value_of(fleet, source)
    assert 3 < reads < 50
    assert begun == 20


async def test_a_large_result_is_dropped_with_its_step(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """A small one stays until its program ends: to drop it is a write."""
    program_id = await waiting(fleet, "await bank__rows(n=1)\nawait bank__shelf(n=2)\nawait bank__pay(n=3)")
    small, large = (KEYS.result(step_call_id(program_id, number)) for number in (1, 2))
    assert (bed.ask("EXISTS", small), bed.ask("EXISTS", large)) == (1, 0)
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    await ended(fleet, program_id)
    assert bed.ask("EXISTS", small) == 0


@pytest.mark.parametrize("end", ["return await bank__secret(n=1)", "raise RuntimeError(await bank__secret(n=1))"])
async def test_what_was_made_of_a_sensitive_result_is_kept_nowhere(
    bed: Bed, bank: Bank, tmp_path: Path, end: str
) -> None:
    """Its caller has it, as that of a tool with such results: no contents, artifact or list has."""
    bed.given |= {**GIVEN, "call_contents": "all", "artifact_store": str(tmp_path)}
    await bed.serve(bank.server)
    await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    result = await run(fleet, end)
    (program,) = await fleet.programs.list(ADA)
    kept = bed.ask("GET", KEYS.contents(outer_call_of(program.program_id)))

    assert SECRET in str(result.result if result.success else result.error)
    assert (program.result, SECRET in str(program.error)) == (None, False)
    assert "programs.run" in kept
    assert SECRET not in kept
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


async def test_inner_calls_have_lines_in_the_audit(bed: Bed, fleet: ToolFleet, bank: Bank) -> None:
    """As calls of their caller, each under its own id, also one that is refused."""
    bad = "try:\n    await bank__add(n='x')\nexcept RuntimeError:\n    pass\n"
    await value_of(fleet, f"{bad}await bank__add(n=1)\nreturn await bank__rows(n=1)")
    lines = [json.loads(fields["line"]) for _, fields in bed.ask("XRANGE", KEYS.audit, "-", "+")]
    program_id = (await fleet.programs.list(ADA))[0].program_id
    inner = [line for line in lines if line["call_id"].startswith(program_id)]

    assert [(line["tool"], line.get("user_id"), line["outcome"]) for line in inner] == [
        ("bank.add", None, "refused"),
        ("bank.add", "ada", "success"),
        ("bank.rows", "ada", "success"),
    ]


FIELDS = ("spec", "at", "told")


def _changed(text: str) -> str:
    """Return the sealed text with one character changed, in the middle of what is sealed."""
    place = len(text) // 2
    return text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", ["changed", "unsigned", "another program's", "older"])
@pytest.mark.usefixtures("nothing_at_hand")
async def test_a_record_that_the_fleet_did_not_write_is_not_run(
    bed: Bed, fleet: ToolFleet, bank: Bank, field: str, how: str
) -> None:
    """No field can be changed, taken from another program, or from an earlier step by itself: nothing is called then."""
    source = "await bank__pay(n=1)\nawait bank__pay(n=2)\nawait bank__add(n=3)"
    program_id = await waiting(fleet, source)
    name = KEYS.program(program_id)
    older = bed.ask("HGETALL", name)
    (asked,) = await fleet.approvals.list()
    await fleet.approvals.approve(asked.approval_id, BOSS)
    await until(lambda: bed.ask("HGET", name, "told") != older["told"], "its second step")
    mine, asked_second = (
        bed.ask("HGETALL", name),
        [each for each in await fleet.approvals.list() if each.state == "waiting"],
    )
    if field == "spec" and how == "older":
        pytest.skip("a specification never changes")
    other_id = await waiting(fleet, source)
    other = bed.ask("HGETALL", KEYS.program(other_id))
    made = {
        "changed": _changed(mine[field]),
        "unsigned": '{"state":"waiting","step":1,"waits":[1],"calls":1}',
        "another program's": other[field],
        "older": older[field],
    }[how]
    bed.ask("HSET", name, field, made)
    await fleet.approvals.approve(asked_second[0].approval_id, BOSS)
    await asyncio.sleep(60)

    assert bank.done() == []
    assert bed.ask("HGET", name, "at") == (made if field == "at" else mine["at"])


async def test_a_snapshot_of_another_monty_is_left_to_another_worker(
    fleet: ToolFleet, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot read it tries it now and then, and does nothing with it; one that can goes on."""
    program_id = await waiting(fleet, "await bank__pay(n=1)\nreturn await bank__add(n=2)")
    tried = list[float]()

    def not_loaded(*_: Any) -> None:
        tried.append(clock.monotonic())
        raise interpreter.SnapshotNotRead("It is of another Monty.")

    (asked,) = await fleet.approvals.list()
    with monkeypatch.context() as patched:
        patched.setattr(interpreter, "_resumed", not_loaded)
        await fleet.approvals.approve(asked.approval_id, BOSS)
        await asyncio.sleep(100)
        assert (await of(fleet, program_id)).state == "waiting"
        assert bank.done() == []
    assert 2 < len(tried) < 8

    assert (await ended(fleet, program_id)).result == {"n": 3}


async def test_only_workers_with_the_extra_take_programs(bed: Bed, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run its calls, and leave the program to those that can."""
    bed.given |= GIVEN
    await bed.serve(bank.server)
    with monkeypatch.context() as patched:
        patched.setattr("toolfleet_workers.worker_app.find_spec", lambda _: None)
        await bed.worker()
    await bed.beat()
    fleet = await bed.agent()
    result = asyncio.create_task(run(fleet, "return await bank__add(n=1)", timeout=600))
    await asyncio.sleep(20)
    assert not result.done()
    worker = await bed.worker()
    assert (await result).result == {"n": 2}
    worker.kill()
    assert bank.done() == [1]
