"""Delivering news of jobs' ends from a real Redis to a real core."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from redis.asyncio import Redis

from support.modules.raw_module import Peer, answering, http, raw_module
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import delivering, hurry, never, put, scores, told, wake
from toolfleet import NotReplayable, Settings, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.jobs.records import JobRecords
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups import outbox
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.wakeups.outbox import DueWake, WakeupOutbox
from toolfleet_tasks.wakeups.sender import DeliveryAnswer

ACCEPTS = answering(http(b"", "202 Taken"))
KEY = "kJ3vR9wQ2mZx7LpT5bNc8YdF1gHs4VuAeXoPq6WiMzE="
REFUSES = answering(http(b"no", "500 Oops"))


@pytest.fixture
def keys(key_prefix: str) -> Keys:
    return Keys(key_prefix)


async def left(redis: Redis) -> list[str]:
    """All keys, but for the name of the data that agents give them."""
    return sorted([key async for key in redis.scan_iter() if key != Keys().data_id])


@pytest.mark.parametrize("key_prefix", ["", "acme:"])
async def test_news_are_delivered_once_and_forgotten(redis_url: str, redis: Redis, keys: Keys) -> None:
    """Each to its path, under its id; nothing of them is left in Redis."""
    await put(redis, "job-1", keys=keys)
    await put(redis, "job-1.notify", kind="notify", keys=keys)
    await put(redis, "job-1", keys=keys)  # an end that is written twice
    async with (
        raw_module(ACCEPTS) as core,
        delivering(redis_url, core.url, key_prefix=keys.prefix) as wakes,
    ):
        assert await wakes.deliver_due(publish=never, seconds=5) == 2
        assert await wakes.deliver_due(publish=never, seconds=5) == 0

    assert sorted((one.line.split()[1], one.headers["webhook-id"]) for one in core.requests) == [
        ("/continue", "job-1"),
        ("/notify", "job-1.notify"),
    ]
    assert told(core.requests[0].body)["result"] == {"status": "completed", "owls": 3}
    assert await left(redis) == []


@pytest.mark.parametrize("key_prefix", ["", "acme:"])
async def test_news_that_are_refused_come_again(redis_url: str, redis: Redis, keys: Keys) -> None:
    """Under the same id, not before their time, until they are accepted; the last error is kept with them."""
    statuses = ["500 Oops", "404 Nothing", "200 OK"]

    async def behave(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(http(b"", statuses.pop(0)))

    await put(redis, keys=keys)
    async with raw_module(behave) as core, delivering(redis_url, core.url, key_prefix=keys.prefix) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 0
        assert await wakes.deliver_due(publish=never, seconds=5) == 0
        assert len(core.requests) == 1
        record = await redis.hgetall(keys.wake("job-1"))
        assert (record["tries"], record["error"]) == ("1", "HTTP 500 Internal Server Error.")
        await hurry(redis, keys=keys)
        assert await wakes.deliver_due(publish=never, seconds=5) == 0
        due_ms = (await scores(redis, keys.wakes_due))["job-1"]
        assert 90 < due_ms / 1000 - time.time() < 150  # two minutes: it has refused
        await hurry(redis, keys=keys)
        assert await wakes.deliver_due(publish=never, seconds=5) == 1

    assert [one.headers["webhook-id"] for one in core.requests] == ["job-1"] * 3
    assert await left(redis) == []


async def test_news_that_nobody_accepts_are_given_up(redis_url: str, redis: Redis) -> None:
    """When their time is over, and the last try is made just then; as dead ones they are kept, so many at most."""
    for number in range(4):
        await put(redis, f"job-{number}", since=50)
    async with (
        raw_module(REFUSES) as core,
        delivering(redis_url, core.url, wake_give_up_seconds=60, dead_letters_kept=2) as wakes,
    ):
        for _ in range(5):  # tries later than its end are made at its end
            await hurry(redis)
            await wakes.deliver_due(publish=never, seconds=5)
        assert all(at / 1000 - time.time() < 11 for at in (await scores(redis, Keys().wakes_due)).values())
        for number in range(4):
            await redis.hincrby(Keys().wake(f"job-{number}"), "first_at", -20_000)
        await hurry(redis)
        await wakes.deliver_due(publish=never, seconds=5)

    assert await left(redis) == ["toolfleet:dead-wakes", "toolfleet:dead-wakes-bytes", "toolfleet:dead-wakes-order"]
    assert await redis.zcard(Keys().dead_wakes_order) == await redis.hlen(Keys().dead_wakes) == 2


async def test_without_a_core_news_for_it_wait_with_a_reason(redis_url: str, redis: Redis) -> None:
    """The setting was taken away, perhaps: it may come back."""
    await put(redis)
    async with delivering(redis_url, None, core_secret=None) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 0

    assert await redis.hget(Keys().wake("job-1"), "error") == "TOOLFLEET_CORE_URL is not set."


async def test_calls_are_published(redis_url: str, redis: Redis) -> None:
    """With what they are to call; one that can never be made is dead at once, one that raises comes again."""
    for number in range(3):
        await put(redis, f"job-1.then.{number}", kind="call", body=json.dumps({"job_id": "job-1", "step": number}))
    asked = Counter[str]()

    async def publish(wake: DueWake) -> str | None:
        asked[wake.wake_id] += 1
        assert json.loads(wake.body)["job_id"] == "job-1"
        if wake.wake_id.endswith("1"):
            return "Permission denied."
        if wake.wake_id.endswith("2") and wake.tries == 1:
            raise RuntimeError("\ud800 not now")
        return None

    async with delivering(redis_url, None, core_secret=None) as wakes:
        assert await wakes.deliver_due(publish=publish, seconds=5) == 1
        await hurry(redis)
        assert await wakes.deliver_due(publish=publish, seconds=5) == 1

    assert asked == {"job-1.then.0": 1, "job-1.then.1": 1, "job-1.then.2": 2}
    dead = json.loads((await redis.hgetall(Keys().dead_wakes))["job-1.then.1"])
    assert dead["error"] == "Permission denied."
    assert await left(redis) == ["toolfleet:dead-wakes", "toolfleet:dead-wakes-bytes", "toolfleet:dead-wakes-order"]


async def hang(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def test_a_core_that_hangs_holds_up_no_call_and_no_tick(redis_url: str, redis: Redis) -> None:
    """A tick ends in its time, and tries go on by themselves; calls have connections of their own."""
    for number in range(200):
        await put(redis, f"job-{number}", conversation_id=f"talk-{number}")
    await put(redis, "job-x.then.0", kind="call", body="{}")
    published = list[str]()

    async def publish(wake: DueWake) -> None:
        published.append(wake.wake_id)

    async with raw_module(hang) as core, delivering(redis_url, core.url, core_seconds=60) as wakes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await wakes.deliver_due(publish=publish, seconds=2)
            assert await wakes.deliver_due(publish=publish, seconds=0.5) == 0
        await wait_until(
            lambda: published == ["job-x.then.0"], "the call was made, also after a tick that was too short for it"
        )
        await wait_until(lambda: len(core.requests) == 50, "as many as may wait for a core do")
        assert await wakes.deliver_due(publish=publish, seconds=0.5) == 0
        assert core.connections == 50
        assert await redis.zcount(Keys().wakes_due, "-inf", time.time() * 1000) == 150  # for other workers


async def test_ticks_at_once_deliver_each_once(redis_url: str, redis: Redis) -> None:
    """In one worker and in several."""
    for number in range(300):
        await put(redis, f"job-{number}", conversation_id=f"talk-{number % 7}")
    async with (
        raw_module(ACCEPTS) as core,
        delivering(redis_url, core.url) as here,
        delivering(redis_url, core.url) as there,
    ):
        ticks = [wakes.deliver_due(publish=never, seconds=20) for wakes in (here, here, there)]
        assert sum(await asyncio.gather(*ticks)) == 300

    assert Counter(one.headers["webhook-id"] for one in core.requests) == {f"job-{n}": 1 for n in range(300)}
    assert await left(redis) == []


async def test_a_conversation_hears_in_order(redis_url: str, redis: Redis) -> None:
    """Where it costs nothing: what is claimed together is told one after the other."""
    for number in range(9):
        await put(redis, f"job-{number}", since=100 - number, conversation_id=f"talk-{number % 2}")
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 9
    heard = [told(one.body) for one in core.requests]

    for talk in ("talk-0", "talk-1"):
        ids = [one["wake_id"] for one in heard if one["conversation_id"] == talk]
        assert ids == sorted(ids)


async def test_what_waits_too_long_for_its_turn_is_given_back(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untried, and due at once: its lease must not run out while it is being told."""
    noted, real = list[tuple[str, str, int]](), WakeupOutbox._note

    async def note(self: WakeupOutbox, wake: DueWake, answer: DeliveryAnswer | None, lane: Any) -> bool:
        noted.append((wake.wake_id, "given back" if answer is None else "tried", wake.tries))
        return await real(self, wake, answer, lane)

    monkeypatch.setattr(WakeupOutbox, "_note", note)
    monkeypatch.setattr(outbox, "_TURN_SECONDS", 0.0)
    for number in range(3):
        await put(redis, f"job-{number}", since=100 - number)
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 3

    assert noted == [
        *(("job-0", "tried", 1), ("job-1", "given back", 1), ("job-2", "given back", 1)),
        *(("job-1", "tried", 1), ("job-2", "given back", 1)),
        ("job-2", "tried", 1),
    ]
    assert [one.headers["webhook-id"] for one in core.requests] == ["job-0", "job-1", "job-2"]
    assert await left(redis) == []


async def test_an_id_without_news_is_forgotten(redis_url: str, redis: Redis) -> None:
    """Half of a record is none."""
    await redis.zadd(Keys().wakes_due, {"job-1": 1, "job-2": 2})
    await redis.hset(Keys().wake("job-2"), "kind", "continue")
    async with delivering(redis_url, "http://127.0.0.1:1") as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 0

    assert await left(redis) == []


OTHERS = wake_body(wake("job-9"))


@pytest.mark.parametrize(
    ("kind", "body"),
    [("continue", "no json"), ("notify", "[]"), ("strange", "{}"), ("continue", OTHERS), ("notify", "[" * 5000)],
)
async def test_news_that_make_no_sense_hinder_no_others(redis_url: str, redis: Redis, kind: str, body: str) -> None:
    """They are not sent, and wait to be given up; so do news under another id than theirs."""
    await put(redis, "job-1", kind=kind, body=body)
    await put(redis, "job-2")
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 1

    assert [one.headers["webhook-id"] for one in core.requests] == ["job-2"]
    assert await redis.hget(Keys().wake("job-1"), "error")
    assert (await scores(redis, Keys().wakes_due)).keys() == {"job-1"}


async def test_a_fleet_that_signs_tells_nobody_elses_news(redis_url: str, redis: Redis) -> None:
    """Whoever can write to Redis can have no conversation woken: not by news of his own, nor by another kind's."""
    seal = Seal(KEY, purpose="job")
    await put(redis, "forged")
    await put(redis, "other-key", body=Seal(KEY[::-1], purpose="job").sign(wake_body(wake("other-key"))))
    await put(redis, "other-kind", body=seal.sign(wake_body(wake("other-kind", kind="notify"))))
    await put(redis, "other-id", body=seal.sign(wake_body(wake("job-9"))))
    none: Any = None
    records = JobRecords(none, Settings(redis_url=redis_url, signing_key=KEY))  # whoever writes a job's end
    await put(redis, "ours", body=records.sealed(wake_body(wake("ours", conversation_id="talk-1"))))
    async with raw_module(ACCEPTS) as core, delivering(redis_url, core.url, signing_key=KEY) as wakes:
        assert await wakes.deliver_due(publish=never, seconds=5) == 1
        assert await redis.hget(Keys().wake("forged"), "error") is not None  # another worker may have the right key
        for wake_id in ("forged", "other-key", "other-kind", "other-id"):
            await redis.hset(Keys().wake(wake_id), "first_at", 1)
        await hurry(redis)
        assert await wakes.deliver_due(publish=never, seconds=5) == 0

    assert [(one.headers["webhook-id"], told(one.body)["conversation_id"]) for one in core.requests] == [
        ("ours", "talk-1")
    ]
    assert await redis.zcard(Keys().dead_wakes_order) == 4


@pytest.mark.parametrize("is_final", [True, False])
async def test_a_dead_call_keeps_no_sensitive_arguments(redis_url: str, redis: Redis, *, is_final: bool) -> None:
    """Nobody can replay it then; others keep theirs."""
    for number, extra in enumerate(({"is_secret": True}, {})):
        call = {"job_id": "job-1", "step": "x", "tool_name": "owls.echo", "call": "hunter2", **extra}
        body = json.dumps(call, separators=(",", ":"))
        await put(redis, f"job-1.then.{number}", kind="call", body=body, since=100)

    async def refuse(_: DueWake) -> str | None:
        if is_final:
            return "Never."
        raise RuntimeError("not now")

    async with delivering(redis_url, None, core_secret=None, wake_give_up_seconds=60) as wakes:
        await wakes.deliver_due(publish=refuse, seconds=5)

    dead: Any = await redis.hgetall(Keys().dead_wakes)
    assert "hunter2" not in dead["job-1.then.0"]
    assert "owls.echo" in dead["job-1.then.0"]
    assert "hunter2" in dead["job-1.then.1"]
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        with pytest.raises(NotReplayable, match="sensitive arguments"):
            await fleet.wakeups.replay("job-1.then.0")
        assert await fleet.wakeups.replay("job-1.then.1")


async def test_dead_news_together_are_bounded(redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes, too: the oldest go; the latest is kept. What is dropped or replayed counts no more."""
    monkeypatch.setattr(outbox, "MOST_DEAD_BYTES", 35_000)
    async with delivering(redis_url, "http://127.0.0.1:1", wake_give_up_seconds=60) as wakes:
        for number in range(5):
            await put(redis, f"job-{number}", since=100, message="x" * 10_000)
            await wakes.deliver_due(publish=never, seconds=5)
    keys = Keys()

    async def sizes() -> int:
        return sum(len(value) for value in (await redis.hgetall(keys.dead_wakes)).values())

    assert await redis.zrange(keys.dead_wakes_order, 0, -1) == ["job-2", "job-3", "job-4"]
    assert int(await redis.get(keys.dead_wakes_bytes) or 0) == await sizes() > 30_000
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        assert await fleet.wakeups.replay("job-2")
        assert await fleet.wakeups.drop("job-3") == ("job-3",)
        assert int(await redis.get(keys.dead_wakes_bytes) or 0) == await sizes() < 12_000
        assert await fleet.wakeups.drop("job-4") == ("job-4",)
    assert await left(redis) == [keys.wake("job-2"), keys.wakes_due]


async def test_who_has_lost_his_lease_puts_nothing_off(redis_url: str, redis: Redis) -> None:
    """Another one has delivered it meanwhile, or has it: only acceptance counts from anybody."""
    gate = asyncio.Event()

    async def slow_refusal(peer: Peer) -> None:
        await peer.request()
        await gate.wait()
        await peer.send(http(b"", "500 Oops"))

    await put(redis)
    async with (
        raw_module(slow_refusal) as slow,
        raw_module(hang) as silent,
        delivering(redis_url, slow.url) as first,
        delivering(redis_url, silent.url) as second,
    ):
        tick = asyncio.create_task(first.deliver_due(publish=never, seconds=5))
        await wait_until(lambda: slow.requests, "the first tries")
        await hurry(redis)
        other = asyncio.create_task(second.deliver_due(publish=never, seconds=1))
        await wait_until(lambda: silent.requests, "the second tries")
        lease = await scores(redis, Keys().wakes_due)
        gate.set()
        await asyncio.gather(tick, other)
        assert await scores(redis, Keys().wakes_due) == lease
        assert await redis.hget(Keys().wake("job-1"), "error") is None
