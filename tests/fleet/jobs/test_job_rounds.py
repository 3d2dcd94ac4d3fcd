"""What jobs do at their turns, with a real worker, beat, module and core: polls that count, rounds that recur, ends that tell."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import WatchError

from support.documents import programs
from support.fleet import TestBed
from support.modules.raw_module import Behaviour, Peer, http, raw_module
from support.modules.works import Works, make_works, running
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import SECRET
from toolfleet import Caller, Conversation, Job, Poll, Schedule, ToolCall, ToolFleet
from toolfleet.webhooks import SQLSeen, WakeReceiver, WakeRefused
from toolfleet_registry.contracts.jobs import ENDED, Completion, WakeUp
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.time import fleet_clock

KEYS = Keys()
BEGIN = ToolCall(tool_name="works.begin")
DAILY = 3
RARELY = "works.state_rarely"
MOST_FAULTS = 5  # in a row: then a job has failed
LONG_SECONDS = 5  # of a wait that is not the interval's

pytestmark = pytest.mark.usefixtures("same_day")


@pytest.fixture(scope="module")
def works() -> Works:
    works = make_works()
    identified = [{"name": "id", "type": "string", "required": True}]
    works.server.add("state_rarely", works.state, effect="read", parameters=identified, daily_limit=DAILY)
    return works


@pytest.fixture(scope="module")
def bed(works: Works, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with running(tmp_path_factory.mktemp("rounds"), works) as bed:
        yield bed


@pytest.fixture
async def fleet(bed: TestBed, works: Works) -> AsyncIterator[ToolFleet]:
    works.server.forget()
    works.pieces.clear()
    works.ends_after = 0
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
async def store(bed: TestBed) -> AsyncIterator["Redis"]:
    """The fleet's Redis."""
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        yield redis


async def job_once(fleet: ToolFleet, job: Job, caller: Caller, fits: Callable[[Job], bool]) -> Job:
    """The job, once it is as it should be."""
    give_up_at = time.monotonic() + 20
    while True:
        found = await fleet.jobs.get(job.job_id, caller)
        assert found is not None
        if fits(found):
            return found
        assert time.monotonic() < give_up_at, found
        await asyncio.sleep(0.02)


def has_ended(job: Job) -> bool:
    return job.state in ENDED


def waits_long(job: Job) -> bool:
    return job.state == "waiting" and job.due_at is not None and job.due_at > time.time() + LONG_SECONDS


async def place_of(redis: "Redis", job: Job) -> dict[str, Any]:
    """Where the job is, as it is written."""
    place = json.loads(await redis.hget(KEYS.job(job.job_id), "at") or "{}")
    assert isinstance(place, dict)
    return place


async def make_due(redis: "Redis", job: Job) -> None:
    """A job that waits is due now, as it is written and as it is sorted; one that moves by itself just now is left alone."""
    key = KEYS.job(job.job_id)
    async with redis.pipeline() as pipe:
        with suppress(WatchError):
            await pipe.watch(key)
            place = await place_of(redis, job)
            if place["state"] != "waiting":
                return
            pipe.multi()
            pipe.hset(key, "at", json.dumps({**place, "due_at": 1.0}))
            pipe.zadd(KEYS.jobs_due, {job.job_id: 1})
            await pipe.execute()


async def audit_of(redis: "Redis", job: Job) -> dict[str, dict[str, Any]]:
    """The lines of the job's calls, by call id; no call has two."""
    entries: Any = await redis.xrange(KEYS.audit)
    lines = [json.loads(entry["line"]) for _, entry in entries]
    lines = [line for line in lines if line["call_id"].startswith(job.job_id)]
    found = {line["call_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


async def rarely_polled(fleet: ToolFleet, caller: Caller) -> Job:
    """A job whose polls a user may make so many of a day; the user has made them all, and one more is refused."""
    poll = Poll(tool_name=RARELY, arguments={"id": {"$from": "task.id"}}, interval_seconds=0.05)
    here = Conversation(conversation_id=f"c-{caller.user_id}")
    job = await fleet.jobs.start(BEGIN, poll, conversation=here, caller=caller, deadline=36_000)
    return await job_once(fleet, job, caller, waits_long)


def someone(name: str) -> Caller:
    """A user of whom no other test has asked anything."""
    return Caller(user_id=name, permission="owner", allowed_modules="*")


async def test_polls_count_in_their_users_daily_limit_and_are_audited(
    fleet: ToolFleet, works: Works, store: "Redis"
) -> None:
    """Each is an ordinary call of the job's creator's: nobody else's limit is touched, and the audit has a line for each."""
    carl = someone("carl")
    job = await rarely_polled(fleet, carl)
    use = (await fleet.remaining(carl)).tools[RARELY]
    lines = await audit_of(store, job)

    assert (use.used, use.left) == (DAILY, 0)
    assert (await fleet.remaining(someone("dora"))).tools[RARELY].used == 0
    polls = [f"{job.job_id}.{number}" for number in range(1, DAILY + 1)]
    assert works.server.call_ids("state_rarely") == polls
    assert set(lines) == {f"{job.job_id}.0", *polls}
    assert {(line["user_id"], line["outcome"], line["attempts"]) for line in lines.values()} == {("carl", "success", 1)}
    assert [lines[call_id]["tool"] for call_id in sorted(lines)] == ["works.begin", *[RARELY] * DAILY]


async def test_a_poll_beyond_the_daily_limit_waits_and_fails_nothing(
    fleet: ToolFleet, works: Works, store: "Redis"
) -> None:
    """However often it is refused, the job waits as long as it is told to; on the next day it polls again, and ends."""
    erna = someone("erna")
    agents_own = await fleet.call(ToolCall(tool_name=RARELY, arguments={"id": "x"}), erna)
    job = await rarely_polled(fleet, erna)
    refused = await fleet.call(ToolCall(tool_name=RARELY, arguments={"id": "x"}), erna)
    for _ in range(MOST_FAULTS + 1):
        await make_due(store, job)
        waiting = await job_once(fleet, job, erna, waits_long)
        assert (waiting.polls, waiting.error, (await place_of(store, job)).get("faults", 0)) == (DAILY - 1, None, 0)

    assert (agents_own.success, refused.error_code) == (True, "rate_limited")  # both count in the same limit
    assert len(works.server.calls("state_rarely")) == DAILY
    assert (await fleet.remaining(erna)).tools[RARELY].used == DAILY
    await store.delete(KEYS.limit("erna", RARELY))  # as at the end of the day
    works.ends_after = 1
    await make_due(store, job)
    over = await job_once(fleet, job, erna, has_ended)

    assert (over.state, over.polls) == ("completed", DAILY)
    assert set(await audit_of(store, job)) == {f"{job.job_id}.{number}" for number in range(DAILY + 1)}


async def test_each_round_of_a_recurring_job_is_called_once_and_told_once(
    fleet: ToolFleet, works: Works, store: "Redis", owner: Caller
) -> None:
    """Under the round's number; then it waits for the next full minute, with no end of its own."""
    began_at = time.time()
    poll = Poll(tool_name="works.state", arguments={"id": "owls"}, until=None)
    here, every_minute = Conversation(conversation_id="c-rounds"), Schedule(cron="* * * * *")
    job = await fleet.jobs.start(None, poll, conversation=here, caller=owner, schedule=every_minute)
    for number in (1, 2):
        await make_due(store, job)
        waiting = await job_once(fleet, job, owner, lambda job: job.state == "waiting" and job.polls >= number)  # noqa: B023 - over before the next
        assert waiting.due_at is not None
        assert waiting.due_at % 60 == 0
        assert began_at < waiting.due_at <= time.time() + 60
    entries: Any = await store.xrange(KEYS.completions_of("c-rounds", owner.user_id))
    async with aclosing(fleet.wakeups.completions("c-rounds")) as news, asyncio.timeout(PATIENCE_SECONDS):
        wakes = [await anext(news) for _ in range(2)]
    await fleet.jobs.cancel(job.job_id, owner)
    own_minutes = int(time.time() // 60 - began_at // 60)  # in which it came due by itself

    called, told = works.server.call_ids("state"), [entry["id"] for _, entry in entries]
    assert called[:2] == told[:2] == [f"{job.job_id}.{number}" for number in (1, 2)]
    assert len(told) <= len(called) <= 2 + own_minutes
    assert [(wake.wake_id, wake.job_id) for wake in wakes] == [(wake_id, job.job_id) for wake_id in told[:2]]
    assert {wake.type for wake in wakes} == {"job.completed"}
    assert [wake.result for wake in wakes] == [{"id": "owls", "status": "running"}] * 2


def core(memory_url: str, acts: list[tuple[str, WakeUp]]) -> Behaviour:
    """An agent's core, which lets in what is signed for its path, and notes what it acts on, with the path's word."""
    receiver = WakeReceiver(SECRET, SQLSeen(memory_url))

    async def behave(peer: Peer) -> None:
        while True:
            request = await peer.request()
            kind: Any = request.line.split()[1].removeprefix("/")
            try:
                async with receiver.receive(request.headers, request.body, kind=kind) as delivery:
                    if delivery.wake is not None:
                        acts.append((kind, delivery.wake))
            except WakeRefused as exc:
                await peer.send(http(str(exc).encode(), "401 Not you"))
            else:
                await peer.send(http(b"", "202 Taken"))

    return behave


async def all_is_accepted(redis_url: str) -> None:
    """Return when no news of an end are left that could be sent, or called, once more."""
    async with Redis.from_url(redis_url) as redis, asyncio.timeout(PATIENCE_SECONDS):
        while await redis.exists(KEYS.wakes_due, KEYS.calls_due):  # noqa: ASYNC110 - Redis has no better word
            await asyncio.sleep(0.01)
        assert not await redis.exists(KEYS.dead_wakes)


async def test_an_end_wakes_and_notifies_the_core_and_calls_a_tool_once_each(tmp_path: Path, owner: Caller) -> None:
    """What is signed for a path is of its kind; when all is accepted nothing is left that could come again."""
    works, acts = make_works(ends_after=2), list[tuple[str, WakeUp]]()
    poll = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=0.05)
    here = Conversation(conversation_id="c-core", platform="chat")
    wishes: list[Completion] = [
        "resume_conversation",
        "notify",
        ToolCall(tool_name="works.ship", arguments={"path": "then"}),
    ]
    async with raw_module(core(f"sqlite:///{tmp_path / 'core.db'}", acts)) as door:
        with running(tmp_path, works, core_url=door.url, core_secret=SECRET) as bed:
            async with ToolFleet(settings=bed.settings) as fleet:
                job = await fleet.jobs.start(BEGIN, poll, wishes, here, caller=owner)
                over = await job_once(fleet, job, owner, has_ended)
            await wait_until(lambda: len(acts) == 2 and works.server.calls("ship"), "all of its end has happened")
            await all_is_accepted(bed.redis_url)

    told = sorted(
        (request.line.split()[:2], request.json["kind"], request.json["wake_id"]) for request in door.requests
    )
    assert told == [
        (["POST", "/continue"], "continue", job.job_id),
        (["POST", "/notify"], "notify", f"{job.job_id}.notify"),
    ]
    assert sorted((path, wake.kind) for path, wake in acts) == [("continue", "continue"), ("notify", "notify")]
    assert {(wake.type, wake.conversation_id, wake.user_id) for _, wake in acts} == {("job.completed", "c-core", "ada")}
    assert all(wake.result == over.result == {"id": "piece-1", "status": "completed"} for _, wake in acts)
    assert works.server.call_ids("ship") == [f"{job.job_id}.then.0"]
    assert works.server.calls("ship")[0]["arguments"] == {"path": "then"}


async def test_a_job_with_two_rounds_completes_and_tells_what_they_brought(
    fleet: ToolFleet, works: Works, store: "Redis", owner: Caller
) -> None:
    """Its message is filled in with each round's result, and its owner sees how many rounds there were."""
    poll = Poll(tool_name="works.state", arguments={"id": "owls"}, until=None)
    twice, here = Schedule(cron="0 0 * * *", max_runs=2), Conversation(conversation_id="c-twice")
    message = "{result.id} is {result.status} in {job_id}, {result.colour}."
    job = await fleet.jobs.start(None, poll, conversation=here, caller=owner, schedule=twice, message=message)
    for runs in (1, 2):
        await make_due(store, job)
        over = await job_once(fleet, job, owner, lambda job: job.runs == runs)  # noqa: B023 - over before the next
    async with aclosing(fleet.wakeups.completions("c-twice")) as news, asyncio.timeout(PATIENCE_SECONDS):
        wakes = [await anext(news) for _ in range(2)]

    assert (over.state, over.runs) == ("completed", 2)
    assert works.server.call_ids("state") == [wake.wake_id for wake in wakes]
    said = f"owls is running in {job.job_id}, {{result.colour}}."
    assert [wake.message for wake in wakes] == [said, f"{said}\n\nThe job is over: no further round follows."]


async def test_a_job_begins_after_its_delay(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """And if it fails then, it says what it was to say in that case."""
    here, began_at = Conversation(conversation_id="c-delay"), fleet_clock.now()
    job = await fleet.jobs.start(
        ToolCall(tool_name="works.refuse"),
        conversation=here,
        caller=owner,
        schedule=Schedule(delay_seconds=0.5),
        message="Go on.",
        on_failure_message="{job_id} needs you.",
    )
    async with aclosing(fleet.wakeups.completions("c-delay")) as news, asyncio.timeout(PATIENCE_SECONDS):
        wake = await anext(news)

    assert job.schedule is not None
    assert job.schedule.at is not None
    assert job.schedule.at >= began_at + 0.5
    assert (wake.type, wake.job_id) == ("job.failed", job.job_id)
    assert wake.timestamp >= job.schedule.at
    assert wake.message.startswith(f"{job.job_id} needs you.\n\nThe job has failed")


async def test_a_job_that_fails_ends_its_workflow(fleet: ToolFleet, works: Works, owner: Caller) -> None:
    """Its siblings are cancelled and look no more; it is listed with them, and others can be ended by their workflow's name."""
    here = Conversation(conversation_id="c-flow")
    poll = Poll(tool_name="works.state", arguments={"id": "owls"}, interval_seconds=0.1)
    sibling = await fleet.jobs.start(None, poll, conversation=here, caller=owner, workflow_id="release")
    other = await fleet.jobs.start(None, poll, conversation=here, caller=owner, workflow_id="nightly")
    failing = ToolCall(tool_name="works.refuse")
    failed = await fleet.jobs.start(failing, conversation=here, caller=owner, workflow_id="release")

    ended = await job_once(fleet, sibling, owner, has_ended)
    listed = await fleet.jobs.list(owner, workflow_id="release")
    assert (ended.state, ended.error_code) == ("cancelled", "cancelled")
    assert f"the job '{failed.job_id}' of its workflow has failed" in str(ended.error)
    assert {job.job_id: job.state for job in listed} == {failed.job_id: "failed", sibling.job_id: "cancelled"}
    assert (await job_once(fleet, other, owner, lambda _: True)).state not in ENDED
    assert await fleet.jobs.cancel_workflow("nightly", someone("zoe")) == 0
    assert await fleet.jobs.cancel_workflow("nightly", owner) == 1
    assert await fleet.jobs.cancel_workflow("nightly", owner) == 0
    assert (await job_once(fleet, other, owner, has_ended)).state == "cancelled"


async def test_the_documents_recurring_call_is_taken(fleet: ToolFleet) -> None:
    """A poll without a condition, at each time of a `cron` schedule; here of the tool that this module has."""
    place: dict[str, Any] = {}
    shown = 'tool_name="owls.count", arguments={"wood": "Sherwood"}'
    program = programs("docs/reference/jobs.md")["recurring"]
    exec(program.replace(shown, 'tool_name="works.state", arguments={"id": "1"}'), place)  # noqa: S102 - our own document
    caller = Caller(user_id="ada", permission="user", allowed_modules="*")
    job: Job = await place["count_each_morning"](fleet, caller)

    assert shown in program
    assert job.state not in ENDED
    assert await fleet.jobs.cancel(job.job_id, caller)
