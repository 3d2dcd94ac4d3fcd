"""News for an agent without HTTP: `async for wake in fleet.wakeups.completions(conversation_id)`, on a real Redis."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from support.processes import next_line, python_program
from support.servers.redis_faults import faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.wakes import SECRET, complete, complete_many, wake
from toolfleet import Settings, SettingsError, ToolFleet
from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups import service
from toolfleet_tasks.wakeups.events import wake_body

STREAM = Keys().completions_of("talk-1", "ada")

READER = """
import asyncio, sys
from toolfleet import Settings, ToolFleet

async def main():
    async with ToolFleet(settings=Settings(redis_url=sys.argv[1])) as fleet:
        async for wake in fleet.wakeups.completions("talk-1"):
            print(wake.wake_id, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        yield fleet


async def read(fleet: ToolFleet, count: int, *, consumer: str | None = None) -> list[WakeUp]:
    """So many, each read to its end."""
    found = list[WakeUp]()
    async with (
        aclosing(fleet.wakeups.completions("talk-1", consumer=consumer)) as news,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        if count:
            async for one in news:
                found.append(one)
                if len(found) > count:
                    break  # the one after is left to others
    return found[:count]


async def test_a_fleet_that_signs_reads_nobody_elses_news(redis_url: str, redis: Redis) -> None:
    """What somebody else has written, or said to another conversation, is left out, and stays in the stream for a look."""
    key = "kJ3vR9wQ2mZx7LpT5bNc8YdF1gHs4VuAeXoPq6WiMzE="
    seal = Seal(key, purpose="job")
    await complete(redis, "forged")
    await complete(redis, "job-2", body=seal.sign(wake_body(wake("job-2", conversation_id="talk-2"))))
    await complete(redis, "job-1", body=seal.sign(wake_body(wake("job-1"))))
    settings = Settings(redis_url=redis_url, signing_key=key)
    async with (
        ToolFleet(settings=settings) as fleet,
        aclosing(fleet.wakeups.completions("talk-1")) as news,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        assert await anext(news) == wake("job-1")
    entries: Any = await redis.xrange(STREAM)
    assert [fields["id"] for _, fields in entries] == ["forged", "job-2", "job-1"]


@pytest.fixture
def look(redis_url: str) -> Iterator[SyncRedis]:
    with SyncRedis.from_url(redis_url) as look:
        yield look


def left_in(look: SyncRedis) -> tuple[int, int]:
    """Entries, and those that somebody has."""
    groups: Any = look.xinfo_groups(STREAM) if look.exists(STREAM) else []
    return int(look.xlen(STREAM)), sum(group["pending"] for group in groups)


async def test_news_come_in_order_and_are_forgotten_when_read(
    fleet: ToolFleet, redis: Redis, look: SyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that waited already, and those that come; what was read is taken from the stream."""
    monkeypatch.setattr(service, "_BLOCK_MS", 600_000)  # what comes is announced, not found by a look
    await complete(redis, "job-1")
    await complete(redis, "job-2")
    heard = list[str]()

    async def listen() -> None:
        async for one in fleet.wakeups.completions("talk-1"):
            assert one == wake(one.wake_id)
            heard.append(one.wake_id)

    listening = asyncio.create_task(listen())
    await wait_until(lambda: heard == ["job-1", "job-2"], "what waited is heard")
    await they_listen(look, 1)
    await complete(redis, "job-3")
    await complete(redis, "job-4", conversation_id="another")
    await wait_until(lambda: heard == ["job-1", "job-2", "job-3"], "what comes is heard")
    await wait_until(lambda: left_in(look) == (0, 0), "what was read is gone")
    assert 0 < await redis.ttl(STREAM) <= 600
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def they_listen(look: SyncRedis, count: int) -> None:
    """So many readers have found nothing, and sleep until something comes."""
    await wait_until(lambda: look.info("clients")["blocked_clients"] == count, "they listen")


async def test_a_conversation_without_news_leaves_nothing(fleet: ToolFleet, redis: Redis, look: SyncRedis) -> None:
    """Listening writes no key."""
    listening = asyncio.create_task(read(fleet, 1))
    await they_listen(look, 1)
    assert not [key async for key in redis.scan_iter("*completion*")]
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_where_a_core_is_woken_nobody_waits_for_completions(redis_url: str) -> None:
    """They would wait for ever."""
    settings = Settings(redis_url=redis_url, core_url="http://127.0.0.1:1", core_secret=SECRET)
    async with ToolFleet(settings=settings) as fleet:
        with pytest.raises(SettingsError, match="TOOLFLEET_CORE_URL"):
            await anext(fleet.wakeups.completions("talk-1"))


async def test_readers_share_the_news(fleet: ToolFleet, redis: Redis, look: SyncRedis) -> None:
    """Each is one reader's."""
    heard = Counter[str]()
    by = Counter[int]()

    async def listen(number: int) -> None:
        async for one in fleet.wakeups.completions("talk-1"):
            heard[one.wake_id] += 1
            by[number] += 1
            await asyncio.sleep(0)

    listening = [asyncio.create_task(listen(number)) for number in range(3)]
    await they_listen(look, 3)
    for number in range(60):
        await complete(redis, f"job-{number}")
    await wait_until(lambda: len(heard) == 60, "all are heard")
    for each in listening:
        each.cancel()
    await asyncio.gather(*listening, return_exceptions=True)

    assert set(heard.values()) == {1}
    assert len(by) == 3


async def test_a_loop_that_is_left_gives_its_news_back(fleet: ToolFleet, redis: Redis) -> None:
    """At once: the next reader has them, in the same order, with the same ids."""
    for number in range(3):
        await complete(redis, f"job-{number}")

    async def fail() -> None:
        async with aclosing(fleet.wakeups.completions("talk-1")) as news:
            async for one in news:
                raise RuntimeError(one.wake_id)

    with pytest.raises(RuntimeError, match="job-0"):
        await fail()
    assert [one.wake_id for one in await read(fleet, 2)] == ["job-0", "job-1"]


async def test_an_agent_that_starts_anew_under_its_name_has_its_news_at_once(redis_url: str, redis: Redis) -> None:
    """What it was given when it was killed."""
    await complete(redis, "job-1")
    program = READER.replace('"talk-1"', '"talk-1", consumer="me"')
    for _ in range(2):
        with python_program(program, redis_url) as reader:
            assert next_line(reader) == "job-1"
            os.kill(reader.pid, signal.SIGKILL)
            reader.wait()


async def test_a_restart_of_redis_loses_nothing(tmp_path: Path) -> None:
    """News from before, and from afterwards; the reader notices nothing."""
    with faulty_redis(tmp_path) as server:
        heard = list[str]()

        async def listen() -> None:
            async with ToolFleet(settings=Settings(redis_url=server.url)) as fleet:
                async for one in fleet.wakeups.completions("talk-1"):
                    heard.append(one.wake_id)

        listening = asyncio.create_task(listen())
        async with Redis.from_url(server.url) as redis:
            await complete(redis, "job-1")
            await wait_until(lambda: heard == ["job-1"], "the first is heard")
        with server.restarted():
            pass
        async with Redis.from_url(server.url) as redis:
            await complete(redis, "job-2")
            await wait_until(lambda: "job-2" in heard, "the second is heard")
            await redis.flushall()  # and without its data
            await complete(redis, "job-3")
            await wait_until(lambda: "job-3" in heard, "the third is heard")
        assert heard == ["job-1", "job-2", "job-3"]
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_leaving_the_fleet_ends_all_readers(redis_url: str, redis: Redis, look: SyncRedis) -> None:
    """One that waits, and one that has news."""
    await complete(redis, "job-1")
    ended = list[str]()

    async def listen(fleet: ToolFleet, conversation_id: str) -> None:
        async for _ in fleet.wakeups.completions(conversation_id):
            await left.wait()
        ended.append(conversation_id)

    left = asyncio.Event()
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        listening = [asyncio.create_task(listen(fleet, name)) for name in ("talk-1", "talk-2")]
        await wait_until(lambda: left_in(look) == (1, 1), "one has news")
    left.set()
    await asyncio.gather(*listening)

    assert sorted(ended) == ["talk-1", "talk-2"]


async def test_an_entry_that_cannot_be_read_hinders_no_others(fleet: ToolFleet, redis: Redis) -> None:
    """Another version's, or a stranger's."""
    await complete(redis, "job-0", body="no json")
    await redis.xadd(STREAM, {"owl": "1"})
    await complete(redis, "job-1")
    await complete(redis, "job-2")

    assert [one.wake_id for one in await read(fleet, 1)] == ["job-1"]


async def test_of_news_that_nobody_reads_the_latest_are_kept(redis: Redis) -> None:
    """A bounded number, for a bounded time."""
    await complete_many(redis, *[f"job-{number}" for number in range(1300)], message="x")
    assert 1000 <= await redis.xlen(STREAM) <= 1100


async def test_news_that_are_too_old_are_dropped(redis: Redis) -> None:
    """With the next that come, though the stream lives on."""
    for number in range(300):
        await redis.xadd(STREAM, {"id": f"old-{number}", "body": "{}"}, id=f"{1_000_000 + number}-0")
    await complete(redis, "job-1")

    assert await redis.xlen(STREAM) <= 101  # whole nodes of a hundred


async def test_readers_hear_of_all_users(
    fleet: ToolFleet, redis: Redis, look: SyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that come, those that were there, and what older processes write for all of them; each entry is announced."""
    monkeypatch.setattr(service, "_BLOCK_MS", 600_000)
    await complete(redis, "job-1", is_older=True)
    await complete(redis, "job-2")
    heard = list[str]()

    async def listen() -> None:
        async for one in fleet.wakeups.completions("talk-1"):
            heard.append(one.wake_id)

    listening = asyncio.create_task(listen())
    await wait_until(lambda: sorted(heard) == ["job-1", "job-2"], "what waited is heard")
    comes: list[dict[str, Any]] = [{"user_id": "bob"}, {"is_older": True}, {}, {"user_id": "eve"}, {"user_id": "bob"}]
    for number, fields in enumerate(comes, start=3):
        await they_listen(look, 1)
        await complete(redis, f"job-{number}", **fields)
        await wait_until(lambda number=number: heard[-1] == f"job-{number}", "what comes is heard")  # type: ignore[misc]
    await they_listen(look, 1)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)

    assert len(heard) == 7
    for key in [key async for key in redis.scan_iter("toolfleet:completions:*")]:
        assert await redis.xlen(key) == 0


async def test_who_has_many_holds_up_nobody(fleet: ToolFleet, redis: Redis) -> None:
    """Readers take from each user's stream in turn."""
    await complete_many(redis, *[f"eve-{number}" for number in range(50)], user_id="eve")
    await complete(redis, "ada-1")

    assert "ada-1" in [one.wake_id for one in await read(fleet, 3)]


async def test_a_conversation_of_many_users_is_visited_by_pages(fleet: ToolFleet, redis: Redis) -> None:
    """No run of the script visits more than a hundred streams, and an entry in the last of them is found."""
    for k in range(250):
        await complete(redis, f"job-{k}", user_id=f"user-{k}")
        await redis.delete(Keys().completions_of("talk-1", f"user-{k}"))
    for k in range(2):  # `read` leaves the second one
        await complete(redis, f"job-last-{k}", user_id="user-last")
    await redis.config_resetstat()
    assert [one.wake_id for one in await read(fleet, 1)] == ["job-last-0"]
    stats = await redis.info("commandstats")
    assert stats["cmdstat_exists"]["calls"] > 200
    assert stats["cmdstat_exists"]["calls"] <= 100 * stats["cmdstat_evalsha"]["calls"]


async def test_a_reader_is_told_once_what_was_trimmed(fleet: ToolFleet, redis: Redis) -> None:
    """How many entries of a user's were dropped before anybody has read them; more of them are told of as they come."""
    lost = list[int]()

    async def read_one() -> str:
        async with (
            aclosing(fleet.wakeups.completions("talk-1", on_lost=lost.append)) as news,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            return (await anext(news)).wake_id

    await complete_many(redis, *[f"job-{number}" for number in range(1300)], message="x")
    gone = 1300 - await redis.xlen(STREAM)
    with structlog.testing.capture_logs() as logs:
        heard = [await read_one(), await read_one()]

    assert (lost, heard) == ([gone], [f"job-{gone}"] * 2)
    assert [(line["event"], line["count"]) for line in logs] == [("completions_lost", gone)]
    await complete_many(redis, *[f"more-{number}" for number in range(150)], message="x")
    await read_one()
    assert lost[1:] == [1450 - gone - await redis.xlen(STREAM)]


def test_programs_without_a_loop_hear_as_well(redis_url: str) -> None:
    """`for wake in fleet.wakeups.completions(id)`; what was left comes again."""
    asyncio.run(_complete_all(redis_url, "job-1", "job-2"))
    with ToolFleet.sync(settings=Settings(redis_url=redis_url)) as fleet:
        news = fleet.wakeups.completions("talk-1")
        assert [next(news).wake_id, next(news).wake_id] == ["job-1", "job-2"]
        news.close()
        assert next(fleet.wakeups.completions("talk-1")).wake_id == "job-2"
        assert fleet.wakeups.waiting() == fleet.wakeups.dead() == []
        assert fleet.wakeups.show("job-1") is None
        assert not fleet.wakeups.replay("job-1")
        assert fleet.wakeups.drop("job-1") == ()
        assert fleet.wakeups.drop_all() == 0


async def _complete_all(redis_url: str, *wake_ids: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        for wake_id in wake_ids:
            await complete(redis, wake_id)


def test_an_agent_needs_no_extra() -> None:
    """The fleet is imported without what signs and remembers wake-ups."""
    with python_program(
        "import sys, toolfleet; print('standardwebhooks' in sys.modules, 'sqlalchemy' in sys.modules)"
    ) as agent:
        assert next_line(agent) == "False False"
