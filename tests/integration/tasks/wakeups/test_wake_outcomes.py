"""What became of a job's wake-ups, and dropping one that waits: on a real Redis, with a real core."""

import asyncio
import json
import re
from typing import Any

import pytest
from redis.asyncio import Redis

from support.modules.raw_module import Peer, answering, http, raw_module
from support.waiting import PATIENCE_SECONDS
from support.workers.wakes import complete, delivering, hurry, never, put
from toolfleet import Caller, Settings, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.scripts import OUTCOMES_BYTES
from toolfleet_tasks.wakeups.events import WakeupOutcome, read_outcomes
from toolfleet_tasks.wakeups.outbox import DueWake

ACCEPTS = answering(http(b"", "202 Taken"))
REFUSES = answering(http(b"no", "500 Oops"))


async def job(redis: Redis, job_id: str = "job-1") -> None:
    """A record of a job, as far as it matters here."""
    await redis.hset(Keys().job(job_id), "spec", "{}")


async def outcomes(redis: Redis, job_id: str = "job-1") -> list[WakeupOutcome]:
    return [*read_outcomes(await redis.hget(Keys().job(job_id), "outcomes"))]


async def test_a_job_keeps_who_accepted_its_wakeups(redis_url: str, redis: Redis) -> None:
    """The core's URL, when, and after how many tries; a call that was published says which."""
    await job(redis)
    await put(redis, "job-1")
    await put(redis, "job-1.then.0", kind="call", body=json.dumps({"job_id": "job-1", "step": "job-1.then.0"}))
    statuses = ["500 Oops", "200 OK"]

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(http(b"", statuses.pop(0)))

    async def publish(_: DueWake) -> None:
        """It is published."""

    async with raw_module(behave) as core, delivering(redis_url, core.url) as wakes:
        await wakes.deliver_due(publish=publish, seconds=5)
        await hurry(redis)
        await wakes.deliver_due(publish=publish, seconds=5)
        url = core.url

    found = {each.wake_id: each for each in await outcomes(redis)}
    assert {each.end for each in found.values()} == {"accepted"}
    assert (found["job-1"].by, found["job-1"].tries) == (f"{url}/continue", 2)
    assert (found["job-1.then.0"].by, found["job-1.then.0"].tries) == ("call job-1.then.0", 1)


async def test_a_core_is_shown_without_its_password(redis_url: str, redis: Redis) -> None:
    """What may be in its URL beside the address is nobody's business."""
    await job(redis)
    await put(redis, "job-1")
    async with raw_module(ACCEPTS) as core:
        url = core.url.replace("http://", "http://tom:secret@")
        async with delivering(redis_url, url) as wakes:
            await wakes.deliver_due(publish=never, seconds=5)

    (found,) = await outcomes(redis)
    assert found.by == f"{core.url}/continue"


async def test_a_job_keeps_that_its_wakeup_was_given_up(redis_url: str, redis: Redis) -> None:
    """And that it was accepted after all, when an operator had it sent again."""
    await job(redis)
    await put(redis, "job-1", since=100)
    async with raw_module(REFUSES) as core, delivering(redis_url, core.url, wake_give_up_seconds=60) as wakes:
        await wakes.deliver_due(publish=never, seconds=5)
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        await fleet.wakeups.replay("job-1")
        async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
            await wakes.deliver_due(publish=never, seconds=5)
        assert [each.end for each in await fleet.wakeups.outcomes("job-1")] == ["given_up", "accepted"]
        assert await fleet.wakeups.outcomes("job-9") == ()


async def test_a_job_keeps_who_read_its_wakeup(redis_url: str, redis: Redis) -> None:
    """A reader in Python by its name, and a user who has confirmed it."""
    await job(redis, "job-1")
    await job(redis, "job-2")
    await complete(redis, "job-1")
    await complete(redis, "job-2")
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        async for wake in fleet.wakeups.completions("talk-1", consumer="den"):
            if wake.wake_id == "job-2":
                break
        inbox = await fleet.wakeups.inbox("talk-1", Caller(user_id="ada"))
        async for entry_id, _ in inbox.follow():
            assert await inbox.confirm(entry_id)
            assert not await inbox.confirm(entry_id)
            break

    (first,), (second,) = await outcomes(redis, "job-1"), await outcomes(redis, "job-2")
    assert (first.end, first.by) == ("read", "reader den")
    assert (second.end, second.by) == ("read", "ada")


async def test_of_many_the_latest_are_kept(redis_url: str, redis: Redis) -> None:
    """A job that recurs has new ones for ever: its record stays small."""
    await job(redis)
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        for number in range(60):
            await put(redis, f"job-1.{number}", job_id="job-1", conversation_id=None)
        await wakes.deliver_due(publish=never, seconds=20)

    kept = await redis.hget(Keys().job("job-1"), "outcomes")
    assert kept is not None
    assert len(kept) <= OUTCOMES_BYTES
    assert 10 < len(await outcomes(redis)) < 60


async def test_a_job_that_is_gone_keeps_nothing(redis_url: str, redis: Redis) -> None:
    """Its record does not come back as half a one, that would never expire."""
    await put(redis, "job-1")
    await redis.set(Keys().job("job-2"), "somebody else's")
    await put(redis, "job-2", conversation_id="other")
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 2

    assert await redis.exists(Keys().job("job-1")) == 0


def test_what_cannot_be_read_is_left_out() -> None:
    """Another version's outcomes, and what somebody else has written."""
    good = '{"wake_id":"job-1","end":"accepted","at":1.5,"by":"core","later":[1]}'
    wrong = [
        "",
        "no json",
        "[]",
        '{"wake_id":"a","end":"eaten","at":1}',
        '{"wake_id":1,"end":"read","at":1}',
        "[" * 9999,
    ]

    assert read_outcomes("\n".join([*wrong, good]).encode() + b"\n\xff") == [
        WakeupOutcome("job-1", "accepted", 1.5, "core")
    ]


async def test_a_dropped_one_does_not_come_back(redis_url: str, redis: Redis) -> None:
    """Nobody tries it any more, of whatever kind it is; its job says who dropped it, and the audit does."""
    await job(redis)
    await put(redis, "job-1")
    await put(redis, "job-1.then.0", kind="call", body=json.dumps({"job_id": "job-1"}))
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        dropped = await fleet.wakeups.drop("job-1", "job-1.then.0", "job-9", "job-1", by="olga")
        again = await fleet.wakeups.drop("job-1", by="tom")
        shown = await fleet.wakeups.show("job-1")
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=1) == 0

    assert (dropped, again, shown) == (("job-1", "job-1.then.0"), (), None)
    assert core.requests == []
    assert [(each.end, each.by, each.under_way) for each in await outcomes(redis)] == [
        ("dropped", "olga (command line)", False)
    ] * 2
    entries: Any = await redis.xrange(Keys().audit)
    lines = [json.loads(fields["line"]) for _, fields in entries]
    assert [(line["change"], line["tool"], line["user_id"], line["outcome"]) for line in lines] == [
        ("wakeup_dropped", "job-1", "olga", "success"),
        ("wakeup_dropped", "job-1.then.0", "olga", "success"),
    ]
    assert await redis.zcard(Keys().wakes_due) == await redis.zcard(Keys().calls_due) == 0


@pytest.mark.parametrize("accepts", [True, False])
async def test_one_that_is_being_tried_is_tried_no_more(redis_url: str, redis: Redis, *, accepts: bool) -> None:
    """It is said that a try was under way. If the core accepts it, its job says that, too; if it refuses, nobody repeats it."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            asked.set()
            await answer.wait()
            await peer.send(http(b"", "202 Taken" if accepts else "503 Busy"))

    await job(redis)
    await put(redis, "job-1")
    async with (
        raw_module(behave) as core,
        delivering(redis_url, core.url) as wakes,
        ToolFleet(settings=Settings(redis_url=redis_url)) as fleet,
    ):
        trying = asyncio.create_task(wakes.deliver_due(publish=never, seconds=10))
        await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
        assert await fleet.wakeups.drop("job-1", by="olga") == ("job-1",)
        answer.set()
        await trying
        await hurry(redis)
        assert await wakes.deliver_due(publish=never, seconds=0.5) == 0

    ends = [(each.end, each.under_way) for each in await outcomes(redis)]
    assert ends == [("dropped", True), *([("accepted", False)] if accepts else [])]
    assert len(core.requests) == 1
    assert await redis.exists(Keys().wake("job-1"), Keys().wakes_due, Keys().dead_wakes) == 0


async def test_one_that_waits_for_its_turn_is_not_sent(redis_url: str, redis: Redis) -> None:
    """Of a conversation's wake-ups, which are sent one after the other, one that is dropped meanwhile stays unsent."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            asked.set()
            await answer.wait()
            await peer.send(http(b"", "202 Taken"))

    for number in range(3):
        await put(redis, f"job-{number}", since=10 - number)
    async with (
        raw_module(behave) as core,
        delivering(redis_url, core.url) as wakes,
        ToolFleet(settings=Settings(redis_url=redis_url)) as fleet,
    ):
        trying = asyncio.create_task(wakes.deliver_due(publish=never, seconds=10))
        await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
        await fleet.wakeups.drop("job-1", by="olga")
        answer.set()
        assert await trying == 2

    assert [one.headers["webhook-id"] for one in core.requests] == ["job-0", "job-2"]


async def test_two_operators_drop_one_once(redis_url: str, redis: Redis) -> None:
    """One of them has dropped it, the other is told that it was not there; its job keeps one line."""
    await job(redis)
    await put(redis, "job-1")
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        both = await asyncio.gather(*(fleet.wakeups.drop("job-1", by=name) for name in ("olga", "tom")))

    assert sorted(both) == [(), ("job-1",)]
    assert len(await outcomes(redis)) == 1


async def test_an_event_for_a_webhook_is_dropped(redis_url: str, redis: Redis) -> None:
    """It lies in its receiver's own set, and belongs to no job."""
    receiver, due = "a" * 16, Keys().webhooks_due("a" * 16)
    await redis.hset(Keys().webhook_positions, receiver, "0-0")
    await put(redis, f"1-0@{receiver}", kind="registry", body="{}")
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        assert [each.kind for each in await fleet.wakeups.waiting()] == ["registry"]
        assert await fleet.wakeups.drop(f"1-0@{receiver}") == (f"1-0@{receiver}",)

    assert await redis.exists(due, Keys().wake(f"1-0@{receiver}")) == 0


async def test_its_end_is_written_once_however_often_it_is_sent(redis_url: str, redis: Redis) -> None:
    """A core's answer that is noted twice, for Redis has not said that it has it, is one line."""
    await job(redis)
    await put(redis, "job-1")
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        await wakes.deliver_due(publish=never, seconds=5)
    kept = str(await redis.hget(Keys().job("job-1"), "outcomes"))
    text = kept.rstrip("\n")
    from toolfleet_tasks.wakeups.outbox import ACCEPTED  # of this test only

    names = {"wake": Keys().wake("job-1"), "due": Keys().wakes_due, "job": Keys().job("job-1")}
    await redis.execute_command(*ACCEPTED.command(**names, id="job-1", outcome=text))

    assert await redis.hget(Keys().job("job-1"), "outcomes") == kept
    assert re.fullmatch(r"\{[^\n]*\}\n", kept)


async def test_beside_deliverers_each_is_dropped_or_delivered(redis_url: str, redis: Redis) -> None:
    """Whatever comes first: nothing waits afterwards, and each job knows what became of its own."""
    names = [f"job-{number}" for number in range(30)]
    for name in names:
        await job(redis, name)
        await put(redis, name, conversation_id=name)
    async with (
        raw_module(ACCEPTS) as core,
        delivering(redis_url, core.url) as wakes,
        ToolFleet(settings=Settings(redis_url=redis_url)) as fleet,
    ):
        dropping = [fleet.wakeups.drop(name, by="olga") for name in names[::2]]
        await asyncio.gather(wakes.deliver_due(publish=never, seconds=10), *dropping)
        if await fleet.wakeups.waiting():  # a process that had no processor for seconds has reached no core
            await hurry(redis)
            await wakes.deliver_due(publish=never, seconds=10)
        ends = {name: {each.end for each in await fleet.wakeups.outcomes(name)} for name in names}
        assert await fleet.wakeups.waiting() == []

    sent = {one.headers["webhook-id"] for one in core.requests}
    assert all(ends.values())
    assert {name for name in names if "accepted" in ends[name]} == sent
