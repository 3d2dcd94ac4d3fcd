"""Programs in Redis: one step has one successor, no state is opened but the fleet's own for that step, and each user has their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from support.waiting import wait_until_equal
from support.workers.ledgers import RepeatingConnection, worker_ledger
from support.workers.stored_programs import (
    SIGNING_KEY,
    SOURCE,
    made_call,
    program_records,
    program_settings,
    stored_program,
    waiting_program,
)
from toolfleet import Caller, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings, load_environment, load_settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.control import fleet_tasks
from toolfleet_tasks.jobs.state_machine import EndedRound
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages.fleet_results import taken_back
from toolfleet_tasks.messages.ids import program_key
from toolfleet_tasks.programs import ProgramRecords, StoredProgram, state_of
from toolfleet_tasks.queues import CONTROL
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport import redis_publisher

ADA, BOB = Caller(user_id="ada", permission="user"), Caller(user_id="bob", permission="user")
KEY = Keys().program("program-a")
VALUE = "a" * 200_000
SEAL = TextSeal(SIGNING_KEY, purpose="program")


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return program_settings(redis_url)


@pytest.fixture(params=[PipelinedConnection, RepeatingConnection], ids=["", "sent-again"])
async def records(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[ProgramRecords]:
    """Every fact holds as well when each script is sent twice, its first answer being lost."""
    async with program_records(settings, request.param) as records:
        yield records


@pytest.mark.parametrize("size", [4, 200_000], ids=["small", "large"])
async def test_of_two_workers_that_take_a_step_one_succeeds(records: ProgramRecords, size: int) -> None:
    """The other one's state, and the calls that it would make, are stored nowhere: it reads the step again."""
    program = await stored_program(records)
    first, second = [
        await records.move(
            program,
            program.place.model_copy(update={"step": 1, "waits": (number,), "calls": number}),
            state=state_of(program, 1, (14, letter * size), [], [made_call(program, number, "waiting")]),
        )
        for number, letter in ((1, "A"), (2, "B"))
    ]

    assert first is not None
    assert second is None
    again = await records.get("program-a")
    assert again is not None
    assert (again.place.waits, again.at, again.source) == ((1,), first.at, SOURCE)
    state = await records.state(again)
    assert state is not None
    assert (state.snapshot, [each.number for each in state.made]) == ("A" * size, [1])


def _other(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else [] if isinstance(value, list) else f"{value}x"


@pytest.mark.parametrize(
    "name", ["program", "step", "caller", "source", "format", "snapshot", "waiting", "made", "signature", "unsigned"]
)
async def test_a_state_that_was_changed_is_refused(records: ProgramRecords, redis: Redis, name: str) -> None:
    """Each of its fields is under the seal; without a seal it counts for nothing."""
    program = await waiting_program(records)
    seal, _, content = str(await redis.hget(KEY, "told")).partition(" ")
    where, _, text = content.partition("{")
    state = json.loads(f"{{{text}")
    if name == "unsigned":
        told = f"{{{text}"
    elif name == "signature":
        told = f"{seal[:-4]}AAAA {content}"
    else:
        told = f"{seal} {where}{json.dumps({**state, name: _other(state[name])}, separators=(',', ':'))}"
    await redis.hset(KEY, "told", told)

    with pytest.raises(MessageRefused):
        await records.state(program)


@pytest.mark.parametrize("name", ["program", "step", "caller", "source"])
async def test_a_state_is_that_of_one_step(records: ProgramRecords, redis: Redis, name: str) -> None:
    """One that the fleet has sealed for another program, step, caller or source is refused as well."""
    program = await waiting_program(records)
    content = SEAL.read(str(await redis.hget(KEY, "told")))
    where, _, text = content.partition("{")
    state = json.loads(f"{{{text}")
    await redis.hset(KEY, "told", SEAL.sign(f"{where}{json.dumps({**state, name: _other(state[name])})}"))

    with pytest.raises(MessageRefused):
        await records.state(program)


async def test_an_older_state_is_not_replayed(records: ProgramRecords, redis: Redis) -> None:
    """Put back behind the position of a later step it is refused; so is the state of another program in its place."""
    program = await waiting_program(records)
    older = str(await redis.hget(KEY, "told"))
    other = await waiting_program(records, "program-b")
    state = state_of(program, 2, (14, "AB=="), [], [made_call(program, 1, "failed")])
    later = await records.move(program, program.place.model_copy(update={"step": 2}), state=state)
    assert later is not None
    later = await records.get("program-a")
    assert later is not None

    for told in (older, str(await redis.hget(Keys().program(other.spec.job_id), "told"))):
        await redis.hset(KEY, "told", told)
        with pytest.raises(MessageRefused):
            await records.state(later)
    await redis.hset(KEY, "at", other.at)
    assert await records.get("program-a") is None


async def test_a_program_that_cannot_be_read_is_left_to_others(records: ProgramRecords, redis: Redis) -> None:
    """It is looked at again later; an id without a record is forgotten."""
    await waiting_program(records)
    await redis.hset(KEY, "spec", "unreadable")
    await redis.zadd(Keys().programs_due, {"program-a": 1, "program-gone": 1})

    assert sorted(await records.due(count=9, lease_seconds=5)) == ["program-a", "program-gone"]
    assert [await records.read(each) for each in ("program-a", "program-gone")] == [None, None]
    assert await redis.zrange(Keys().programs_due, 0, -1) == ["program-a"]
    assert float(await redis.zscore(Keys().programs_due, "program-a") or 0) > 1000 * fleet_clock.now()
    assert await redis.hexists(KEY, "unread")


@pytest.mark.parametrize("detached", [False, True])
async def test_a_caller_hears_of_the_end_in_one_way(records: ProgramRecords, redis: Redis, detached: bool) -> None:
    """While it waits the record has the value; once it does not the conversation is woken, once, and the record has it, too."""
    program = await waiting_program(records)
    if detached:
        moved = await records.move(program, program.place.model_copy(update={"detached": True}))
        assert moved is not None
        program = moved
    calls = [made_call(program, 1, "succeeded")]
    assert await records.end(program, EndedRound("completed", {"rows": [1]}), calls)
    assert await records.end(program, None, calls) is None

    over = await records.get("program-a")
    assert over is not None
    assert over.end is not None
    assert (over.place.state, over.end.result, over.end.calls) == ("completed", {"rows": [1]}, tuple(calls))
    told = [key async for key in redis.scan_iter("toolfleet:completions:*")]
    assert [await redis.xlen(key) for key in told] == ([1] if detached else [])
    assert not await redis.hexists(KEY, "told")
    assert 0 < await redis.ttl(KEY) <= 7 * 86_400


async def test_a_sensitive_value_is_for_the_waiting_caller_only(settings: Settings, redis: Redis) -> None:
    """Where a tool hides its results, a wake-up and what is shown have none."""
    async with program_records(settings) as records, ToolFleet(settings=settings) as fleet:
        for name, detached in (("program-a", True), ("program-b", False)):
            program = await waiting_program(records, name)
            place = program.place.model_copy(update={"hides": True, "detached": detached})
            moved = await records.move(program, place)
            assert moved is not None
            over = await records.end(moved, EndedRound("completed", "s3cret"), [])
            assert over is not None
            assert over.end is not None
            assert "s3cret" not in str(over.end.result)
            kept = await records.get(name)
            assert kept is not None
            assert kept.end is not None
            assert kept.end.result == (None if detached else "s3cret")
            shown = await fleet.programs.get(name, ADA)
            assert shown is not None
            assert (shown.state, shown.result) == ("completed", None)
    (stream,) = [key async for key in redis.scan_iter("toolfleet:completions:*")]
    assert "s3cret" not in str(await redis.xrange(stream))


async def test_a_user_has_so_many_waiting_programs_and_no_more(records: ProgramRecords) -> None:
    """Those that have ended do not count, nor do other users'."""
    first = await stored_program(records, "program-1", limit=1)
    assert await records.create(first.spec.model_copy(update={"job_id": "program-2"}), first.place, limit=1) == 1
    await stored_program(records, "program-3", user_id="bob", limit=1)
    assert await records.end(first, None, []) is not None

    await stored_program(records, "program-4", limit=1)


def _call_of(program_id: str, number: int, arguments: dict[str, Any]) -> PublishedCall:
    now = fleet_clock.now()
    return PublishedCall(
        call_id=f"{program_id}.{number}",
        tool_name="owls.echo",
        effect="once",
        arguments=arguments,
        user_id="ada",
        caller=ADA,
        published_at=now,
        deadline_at=now + 60,
        limit_seconds=5,
        idempotency_key=program_key(program_id, number),
        job_id=program_id,
    )


def _ledger(settings: Settings) -> AbstractAsyncContextManager[Ledger]:
    return worker_ledger(str(settings.redis_url), signing_key=SIGNING_KEY)


async def _end_of_call(ledger: Ledger, program: StoredProgram, number: int) -> None:
    call = _call_of(program.spec.job_id, number, {"text": "a"})
    assert await ledger.withdraw(call, taken_back(call), data_id="any")


async def test_the_key_of_a_number_stands_for_one_call(
    records: ProgramRecords, redis: Redis, settings: Settings
) -> None:
    """Another call under it, or another one's id there, is found before anything is published."""
    call = _call_of("program-a", 1, {"text": "a"})
    program = await stored_program(records)

    async def is_foreign(call: PublishedCall) -> bool:
        return records.is_foreign(call, (await records.intents(program, [1]))[1])

    assert not await is_foreign(call)
    key, seconds, value = AdmissionControl(settings).intention_of(call)
    assert seconds > 30 * 86_400
    users = AdmissionControl(settings).intention_of(call.model_copy(update={"job_id": None}))
    assert users[1] <= settings.result_ttl_seconds, "a key that a caller has chosen makes no call of a program"
    digest = value.split(" ")[0]
    await redis.set(key, f"{call.call_id} {digest} {call.deadline_at} run", ex=seconds)

    assert not await is_foreign(call)
    assert await is_foreign(_call_of("program-a", 1, {"text": "b"}))
    await redis.set(key, f"another {digest} {call.deadline_at} run", ex=seconds)
    assert await is_foreign(call)


async def test_of_the_calls_of_an_ended_program_is_kept_what_is_of_any(settings: Settings, redis: Redis) -> None:
    """The texts of results go with the end; records and keys stay for as long as a result is kept.

    A call that the program has left is forgotten when it has ended, too. An older position of the program is none.
    """
    async with program_records(settings) as records, _ledger(settings) as ledger:
        program = await waiting_program(records, calls=3, seconds=20 * 86_400)
        for number in (1, 2):
            await _end_of_call(ledger, program, number)
        ends = await records.ends([program.call_id(number) for number in (1, 2, 3)])
        assert [end.state for end in ends] == ["done", "done", ""]
        found = [(await records.result(program.call_id(number)))[0] for number in (1, 2, 3)]
        assert [each and each.error_code for each in found] == ["cancelled", "cancelled", None]

        calls = [made_call(program, number, state) for number, state in ((1, "failed"), (2, "left"), (3, "left"))]
        over = await records.end(program, EndedRound("completed", 1), calls)
        assert over is not None
        intent = Keys().intent("ada", program_key("program-a", 1))
        await redis.set(intent, "program-a.1 digest", ex=31 * 86_400)
        records.forget_calls(over)
        results = [Keys().result(each.call_id) for each in calls]
        await wait_until_equal(lambda: redis.exists(*results), 0, "the texts are dropped")
        for key in (Keys().call(program.call_id(1)), intent):
            assert 0 < await redis.ttl(key) <= settings.result_ttl_seconds
        assert (await records.ends([program.call_id(2)]))[0].state == "done"

        await _end_of_call(ledger, program, 3)
        assert await redis.exists(results[2])
        assert await records.read("program-a") is not None
        await wait_until_equal(lambda: redis.exists(results[2]), 0, "so is that of the call that was left")

        await redis.hset(KEY, "at", program.at)
        assert await records.get("program-a") is None


async def test_a_result_that_was_handed_over_is_not_kept_twice(settings: Settings, redis: Redis) -> None:
    """The state has it as soon as the next step is stored, and not before; the call's record stays."""
    async with program_records(settings) as records, _ledger(settings) as ledger:
        program = await waiting_program(records, calls=2)
        for number in (1, 2):
            await _end_of_call(ledger, program, number)
        first, second = [Keys().result(program.call_id(number)) for number in (1, 2)]

        stale = program
        soon = await records.move(program, program.place, due_at=fleet_clock.now())
        assert soon is not None
        assert await redis.exists(first, second) == 2
        place = soon.place.model_copy(update={"step": 2, "waits": (2,)})
        assert await records.move(soon, place, state=state_of(soon, 2, (14, "AB=="), [], [])) is not None
        records.drop(soon, [1])
        await wait_until_equal(lambda: redis.exists(first), 0, "it is dropped")
        assert await redis.exists(second)
        assert [end.state for end in await records.ends([program.call_id(1)])] == ["done"]
        assert await records.end(stale, EndedRound("failed", error="?", error_code="outcome_unknown"), []) is None


@pytest.mark.parametrize("detached", [False, True], ids=["waits", "detached"])
async def test_a_large_value_is_kept_apart(settings: Settings, redis: Redis, detached: bool) -> None:
    """For its waiting caller, or for some hours in the share of its user; a record that stays for days has none of it."""
    async with program_records(settings) as records:
        program = await waiting_program(records)
        if detached:
            moved = await records.move(program, program.place.model_copy(update={"detached": True}))
            assert moved is not None
            program = moved
        assert await records.end(program, EndedRound("completed", VALUE), []) is not None

        (name,) = await redis.keys(Keys().program_value("program-a", "*"))
        assert await records.end(program, EndedRound("completed", f"{VALUE} of a slower worker"), []) is None
        assert await redis.hstrlen(KEY, "end") < 1_000
        assert 0 < await redis.ttl(name) <= (settings.result_ttl_seconds if detached else 60 + 60)
        over = await records.get("program-a")
        assert over is not None
        assert over.end is not None
        assert over.end.result == VALUE
        (listed,) = await records.of_user("ada", ended=True, limit=9)
        assert listed.end is not None
        assert listed.end.result == "A value of 200002 bytes, which is not kept here."

        await redis.set(name, '"forged"', keepttl=True)
        forged = await records.get("program-a")
        assert forged is not None
        assert forged.end == listed.end


async def test_values_that_no_caller_waits_for_have_room_in_their_users_share(settings: Settings, redis: Redis) -> None:
    """A user's programs cannot fill Redis: beyond half of the share none is kept, and a waiting caller has its own all the same."""
    small = settings.model_copy(update={"stored_bytes_per_caller": 1_000_000})
    async with program_records(small) as records:
        for number in range(4):
            program = await waiting_program(records, f"program-{number}")
            moved = await records.move(program, program.place.model_copy(update={"detached": number < 3}))
            assert moved is not None
            assert await records.end(moved, EndedRound("completed", VALUE), []) is not None
    kept = [len(await redis.keys(Keys().program_value(f"program-{number}", "*"))) for number in range(4)]
    assert kept == [1, 1, 0, 1]


async def test_requests_to_go_on_do_not_pile_up(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no worker takes them, as the queue is paused or the extra is nowhere: beat's ticks come by the queue of all workers."""
    assert fleet_tasks.schedule(settings)["resume-programs"]["options"]["queue"] == CONTROL
    monkeypatch.setattr(redis_publisher, "_MOST_REQUESTS", 3)
    app: Any = SimpleNamespace(settings=settings)
    worker_runtime.start(asyncio.get_running_loop(), broker=str(settings.broker))
    try:
        for _ in range(3):
            await redis_publisher.resume_programs_soon(app, "")
        assert await redis.llen("tools.programs") == 1
        for number in range(5):
            await redis_publisher.resume_programs_soon(app, f"program-{number}")
        assert await redis.llen("tools.programs") == 3
    finally:
        await worker_runtime.stop()


async def test_a_program_is_its_users(settings: Settings, redis: Redis) -> None:
    """Another user cannot see, list or cancel it. Its own user's cancel is a mark, which a worker is asked to act on."""
    async with program_records(settings) as records, ToolFleet(settings=settings) as fleet:
        await waiting_program(records, calls=2)
        assert await fleet.programs.get("program-a", BOB) is None
        assert await fleet.programs.cancel("program-a", BOB) is None
        assert await fleet.programs.list(BOB) == []
        shown = await fleet.programs.get("program-a", ADA)
        assert shown is not None
        assert [each.state for each in shown.calls] == ["waiting", "waiting"]
        assert [each.program_id for each in await fleet.programs.list(ADA)] == ["program-a"]
        assert await redis.llen(CONTROL) == 0

        for _ in range(2):
            cancelled = await fleet.programs.cancel("program-a", ADA)
            assert cancelled is not None
            assert cancelled.state == "waiting"
        program = await records.get("program-a")
        assert program is not None
        assert program.place.is_cancelled
        await wait_until_equal(lambda: redis.llen(CONTROL), 2, "any worker is asked: those that can may be paused")
        assert await records.due(count=5, lease_seconds=5) == ["program-a"]


async def test_programs_need_a_signing_key(redis_url: str) -> None:
    """Who reaches Redis could change what a program does; nor can another module have the name."""
    with pytest.raises(ValueError, match="TOOLFLEET_PROGRAMS needs TOOLFLEET_SIGNING_KEY"):
        program_settings(redis_url, signing_key=None)
    with pytest.raises(ValueError, match="'programs' is the name of the fleet's own tools"):
        Settings(module_services={"programs": "http://127.0.0.1:1"})
    with pytest.raises(ValueError, match="2592000"):
        program_settings(redis_url, programs={"seconds": 31 * 86_400})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        *((each, 100) for each in ("true", "True", "1", "on", "yes", "{}")),
        *((each, None) for each in ("false", "False", "0", "off", "no", "null")),
        ('{"calls": 50}', 50),
    ],
)
def test_programs_are_one_setting(monkeypatch: pytest.MonkeyPatch, text: str, calls: int | None) -> None:
    """It is a switch as others are, or a table of bounds; a file has it as `[programs]`."""
    monkeypatch.setenv("TOOLFLEET_PROGRAMS", text)
    settings = load_settings(signing_key=SIGNING_KEY)

    assert ("programs" in settings.modules) == (calls is not None)
    if calls is not None:
        assert settings.program_limit("calls") == calls
        for name, value in environment_of(settings).items():
            monkeypatch.setenv(name, value)
        assert load_environment().programs == settings.programs
