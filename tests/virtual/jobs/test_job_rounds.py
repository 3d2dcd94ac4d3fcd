"""What jobs do at their turns: polls that count, rounds that recur, ends that tell."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.documents import programs
from support.modules.raw_module import Behaviour, Peer, http, raw_module
from support.modules.works import BEGIN, HERE, SLOWLY, Works, job_ended, job_once
from support.workers.wakes import SECRET
from toolfleet import Caller, Job, Poll, Schedule, ToolCall, ToolFleet
from toolfleet.webhooks import SQLSeen, WakeReceiver, WakeRefused
from toolfleet_registry.contracts.jobs import ENDED, Completion, WakeUp

HOUR, DAY = 3600, 86_400
OVER = "\n\nThe job is over: no further round follows."
DAILY = 3
MOST_FAULTS = 5  # in a row: then a job has failed
RARELY = SLOWLY.model_copy(update={"tool_name": "works.state_rarely"})
once, ended = partial(job_once, seconds=HOUR), partial(job_ended, seconds=HOUR)


@asynccontextmanager
async def awake(bed: Bed, works: Works) -> AsyncGenerator[ToolFleet]:
    """A worker, a beat and an agent, until the block ends: a day in which nobody lives costs nothing."""
    if not bed.given["module_services"]:
        await bed.serve(works.server)
    await bed.worker()
    await bed.beat()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet
    bed.kill_members()


async def sleep_until(at: float) -> None:
    await asyncio.sleep(at - time.time())


async def test_a_poll_beyond_the_daily_limit_waits_for_the_next_day(bed: Bed, works: Works, owner: Caller) -> None:
    """It is an ordinary call of its creator's: it counts with the agent's own, nobody else's limit is touched, and each is audited.

    However often it is refused meanwhile, that fails nothing.
    """
    works.ends_after, tool = 0, RARELY.tool_name
    look = ToolCall(tool_name=tool, arguments={"id": "x"})
    async with awake(bed, works) as fleet:
        assert (await fleet.call(look, owner)).success
        job = await fleet.jobs.start(BEGIN, RARELY, conversation=HERE, caller=owner, deadline=2 * DAY)
        job = await once(fleet, job, owner, lambda job: job.polls == DAILY - 1)
        midnight = (time.time() // DAY + 1) * DAY
    for _ in range(MOST_FAULTS + 1):
        async with awake(bed, works) as fleet:
            job = await once(fleet, job, owner, lambda job: (job.due_at or 0) > time.time() + HOUR / 2)
            use = {
                each: (await fleet.remaining(Caller(user_id=each, allowed_modules="*"))).tools[tool]
                for each in ("ada", "dora")
            }
            assert (await fleet.call(look, owner)).error_code == "rate_limited"
        place = json.loads(bed.ask("HGET", bed.settings.keys.job(job.job_id), "at"))
        assert (job.state, job.polls, job.error, place.get("faults", 0)) == ("waiting", DAILY - 1, None, 0)
        assert [(use[each].used, use[each].left) for each in ("ada", "dora")] == [(DAILY, 0), (0, DAILY)]
        assert len(works.server.calls("state_rarely")) == DAILY
        await sleep_until((job.due_at or 0) - 1)
    works.ends_after = 1
    await sleep_until(midnight)
    async with awake(bed, works) as fleet:
        job = await ended(fleet, job, owner)
    lines = [json.loads(entry["line"]) for _, entry in bed.ask("XRANGE", bed.settings.keys.audit, "-", "+")]
    audited = [line for line in lines if line["call_id"].startswith(job.job_id)]

    assert (job.state, job.polls) == ("completed", DAILY)
    polls = [f"{job.job_id}.{number}" for number in range(1, DAILY + 1)]
    assert works.server.call_ids("state_rarely")[1:] == polls
    assert [line["call_id"] for line in audited] == [f"{job.job_id}.0", *polls]
    assert [line["tool"] for line in audited] == ["works.begin", *[tool] * DAILY]
    assert {(line["user_id"], line["outcome"], line["attempts"]) for line in audited} == {("ada", "success", 1)}


@pytest.mark.parametrize(("cron", "period", "most"), [("* * * * *", 60, None), ("0 0 * * *", DAY, 2)])
async def test_each_round_of_a_recurring_job_is_called_once_and_told_once(
    bed: Bed, works: Works, owner: Caller, cron: str, period: int, most: int | None
) -> None:
    """At its time, under the round's number; the message is filled in with its result. After the last one the job is over."""
    poll = Poll(tool_name="works.state", arguments={"id": "owls"}, until=None)
    message = "{result.id} is {result.status} in {job_id}, {result.colour}."
    schedule, works.ends_after = Schedule(cron=cron, max_runs=most), 0
    async with awake(bed, works) as fleet:
        job = await fleet.jobs.start(None, poll, conversation=HERE, caller=owner, schedule=schedule, message=message)
    due = [(time.time() // period + number) * period for number in (1, 2)]
    for number, at in enumerate(due, start=1):
        await sleep_until(at - 5)
        async with awake(bed, works) as fleet:
            job = await once(fleet, job, owner, lambda job: job.polls == number and job.state != "polling")  # noqa: B023 - awaited
            assert at <= time.time() < at + 10
    entries = bed.ask("XRANGE", bed.settings.keys.completions_of("c-1", owner.user_id), "-", "+")
    told = [entry["id"] for _, entry in entries]  # before it is read
    async with awake(bed, works) as fleet, aclosing(fleet.wakeups.completions("c-1")) as news:
        wakes = [await anext(news) for _ in due]

    assert (job.state, job.runs, job.due_at) == (
        ("completed", most, None) if most else ("waiting", None, due[-1] + period)
    )
    ids = [f"{job.job_id}.{number}" for number in (1, 2)]
    assert told == ids
    assert works.server.call_ids("state") == [wake.wake_id for wake in wakes] == ids
    assert [wake.timestamp - at < 10 for wake, at in zip(wakes, due, strict=True)] == [True] * 2
    assert {(wake.type, wake.job_id) for wake in wakes} == {("job.completed", job.job_id)}
    assert [wake.result for wake in wakes] == [{"id": "owls", "status": "running"}] * 2
    said = f"owls is running in {job.job_id}, {{result.colour}}."
    assert [wake.message for wake in wakes] == [said, said + (OVER if most else "")]


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


async def test_an_end_wakes_and_notifies_the_core_and_calls_a_tool_once_each(
    bed: Bed, works: Works, tmp_path: Path, owner: Caller
) -> None:
    """What is signed for a path is of its kind; when all is accepted nothing is left that could come again."""
    acts, keys = list[tuple[str, WakeUp]](), bed.settings.keys
    ship = ToolCall(tool_name="works.ship", arguments={"path": "then"})
    wishes: list[Completion] = ["resume_conversation", "notify", ship]
    async with raw_module(core(f"sqlite:///{tmp_path / 'core.db'}", acts)) as door:
        bed.given.update(core_url=door.url, core_secret=SECRET)
        async with awake(bed, works) as fleet:
            job = await fleet.jobs.start(BEGIN, SLOWLY, wishes, HERE, caller=owner)
            over = await ended(fleet, job, owner)
            await until(lambda: not bed.ask("EXISTS", keys.wakes_due, keys.calls_due), "all is accepted")
            await asyncio.sleep(30)

    told = sorted(
        (request.line.split()[:2], request.json["kind"], request.json["wake_id"]) for request in door.requests
    )
    assert told == [
        (["POST", "/continue"], "continue", job.job_id),
        (["POST", "/notify"], "notify", f"{job.job_id}.notify"),
    ]
    assert sorted((path, wake.kind) for path, wake in acts) == [("continue", "continue"), ("notify", "notify")]
    assert {(wake.type, wake.conversation_id, wake.user_id) for _, wake in acts} == {("job.completed", "c-1", "ada")}
    assert all(wake.result == over.result == {"id": "piece-1", "status": "completed"} for _, wake in acts)
    assert works.server.call_ids("ship") == [f"{job.job_id}.then.0"]
    assert works.server.calls("ship")[0]["arguments"] == {"path": "then"}
    assert not bed.ask("EXISTS", keys.dead_wakes)


async def test_the_documents_recurring_call_is_taken(fleet: ToolFleet) -> None:
    """A poll without a condition, at each time of a `cron` schedule; here of the tool that this module has."""
    place: dict[str, Any] = {}
    shown = 'tool_name="owls.count", arguments={"wood": "Sherwood"}'
    program = programs("docs/guides/jobs.md")["recurring"]
    exec(program.replace(shown, 'tool_name="works.state", arguments={"id": "1"}'), place)  # noqa: S102 - our own document
    caller = Caller(user_id="ada", permission="user", allowed_modules="*")
    job: Job = await place["count_each_morning"](fleet, caller)

    assert shown in program
    assert job.state not in ENDED
    assert await fleet.jobs.cancel(job.job_id, caller)
