"""What a worker holds, and for how long it is its own."""

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from structlog.testing import capture_logs

from bed.fleet import Bed, until
from support.servers.raw_redis import obliging, raw_redis
from support.workers.held_messages import QUEUE, STORE, cut, hold, open_connection, open_leases, publish, stop_reading
from toolfleet_tasks.redis_connection import Part, PipelinedConnection
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.transport.leases import Leases

SECONDS = STORE.seconds
"""Of a lease."""


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        yield redis


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    async with open_connection(redis_url) as connection:
        yield connection


@pytest.fixture
async def leases(connection: PipelinedConnection) -> AsyncIterator[Leases]:
    async with open_leases(connection) as leases:
        yield leases


@pytest.fixture
def sent(connection: PipelinedConnection, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Part, ...]]:
    """Every command that goes over the line."""
    return spied(connection, monkeypatch)


def spied(connection: PipelinedConnection, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Part, ...]]:
    commands: list[tuple[Part, ...]] = []
    send = connection.send

    def spy(*command: Part) -> "asyncio.Future[object]":
        commands.append(command)
        return send(*command)

    monkeypatch.setattr(connection, "send", spy)
    return commands


def begun_at(redis: Redis, tag: str) -> float | None:
    score = redis.zscore(STORE.unacked_index, tag)
    return None if score is None else float(score)


async def test_acks_of_one_tick_are_one_command(leases: Leases, redis: Redis, sent: list[tuple[Part, ...]]) -> None:
    """Two hundred acks leave together, and nothing is held any more."""
    tags = [f"t-{number}" for number in range(200)]
    hold(redis, leases, *tags)
    for tag in tags:
        leases.ack(tag)
    assert leases.acked == set(tags)
    await leases.settled()

    assert [command[:2] for command in sent if command[0] != "EVAL"] == [("EVALSHA", scripts.ACK.digest)]
    assert not leases.held | leases.acked
    assert redis.exists(STORE.unacked, STORE.unacked_index) == 0


async def test_a_redis_that_has_lost_the_script_gets_its_text(
    leases: Leases, redis: Redis, sent: list[tuple[Part, ...]]
) -> None:
    """Once: the acks after that name it again."""
    for tag in ("first", "second"):
        redis.script_flush() if tag == "first" else None
        hold(redis, leases, tag)
        leases.ack(tag)
        await leases.settled()

    acks = [command[0] for command in sent if command[1] in {scripts.ACK.digest, scripts.ACK.text}]
    assert acks == ["EVALSHA", "EVAL", "EVALSHA"]
    assert redis.exists(STORE.unacked, STORE.unacked_index) == 0


async def test_acks_that_were_lost_are_sent_again(
    leases: Leases, connection: PipelinedConnection, redis: Redis
) -> None:
    """Sent and not answered, queued, or acked while Redis is away: after the reconnect Redis knows of all."""
    hold(redis, leases, "answered", "unanswered", "queued", "away", "kept")
    stop_reading(connection)
    leases.ack("unanswered")
    await asyncio.sleep(0)
    leases.ack("queued")
    cut(connection)
    leases.ack("away")
    await leases.settled()

    assert sorted(redis.hkeys(STORE.unacked)) == ["answered", "kept"]
    assert leases.held == {"answered", "kept"}


async def test_acks_that_redis_refuses_are_sent_again() -> None:
    """A Redis that is out of memory, or only a replica for now, gets them once more a little later."""
    refusals = 2

    def answer(command: list[bytes]) -> bytes:
        nonlocal refusals
        if command[0] == b"EVALSHA" and refusals:
            refusals -= 1
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        return b":1\r\n" if command[0] == b"EVALSHA" else obliging(command)

    async with raw_redis(answer) as raw, open_connection(raw.url) as connection, open_leases(connection) as leases:
        leases.hold(["tag"], of=())
        leases.ack("tag")
        await leases.settled()

        assert raw.seen[b"EVALSHA"] == 3


async def test_a_message_is_held_until_the_end_of_its_call_has_forgotten_it(
    leases: Leases, connection: PipelinedConnection, redis: Redis, sent: list[tuple[Part, ...]]
) -> None:
    """And then its ack sends nothing. One whose end was refused is acked as ever, and one that is lost cannot end so."""
    hold(redis, leases, "ended", "refused")
    assert [leases.end(tag) for tag in ("ended", "refused", "lost")] == [
        (STORE.unacked, STORE.unacked_index, "ended"),
        (STORE.unacked, STORE.unacked_index, "refused"),
        None,
    ]
    assert leases.held == {"ended", "refused"}
    redis.zadd(STORE.unacked_index, {"ended": 1})
    cut(connection)
    await until(lambda: begun_at(redis, "ended") != 1, "its lease was renewed")

    leases.ended("ended", is_forgotten=True)
    leases.ended("refused", is_forgotten=False)
    assert leases.held == {"refused"}
    for tag in ("ended", "refused"):
        leases.ack(tag)
    await leases.settled()
    assert redis.hkeys(STORE.unacked) == ["ended"]  # of which the ledger's script sees to it
    assert not leases.held | leases.acked
    assert [command[-1] for command in sent if command[1] == scripts.ACK.digest] == ["refused"]


async def test_what_ends_just_now_is_not_lost(leases: Leases, connection: PipelinedConnection, redis: Redis) -> None:
    """Redis has forgotten it, and its answer was lost with the connection. What was acked meanwhile is held no more."""
    hold(redis, leases, "ending", "acked")
    for tag in ("ending", "acked"):
        leases.end(tag)
    leases.ack("acked")
    leases.ended("acked", is_forgotten=False)
    redis.delete(STORE.unacked_index)
    with capture_logs() as logs:
        cut(connection)
        await connection.connected()
        await connection.execute("PING")  # the renewals were answered before
        await asyncio.sleep(0)

    assert leases.held == {"ending"}
    assert "leases_lost" not in {entry["event"] for entry in logs}


async def test_leases_are_renewed(connection: PipelinedConnection, redis: Redis) -> None:
    """A message that is held for several leases stays this worker's, and its lease began a moment ago."""
    async with open_leases(connection) as leases:
        hold(redis, leases, "long")
        await asyncio.sleep(5 * SECONDS)

        assert time.time() - SECONDS / 2 < (begun_at(redis, "long") or 0)
        assert leases.held == {"long"}
        assert redis.llen(QUEUE) == 0


async def test_leases_are_renewed_at_once_after_a_loss(
    leases: Leases, connection: PipelinedConnection, redis: Redis
) -> None:
    """The first thing that Redis hears after an outage is what this worker still holds."""
    hold(redis, leases, "tag")
    redis.zadd(STORE.unacked_index, {"tag": 1})
    cut(connection)
    await until(lambda: begun_at(redis, "tag") != 1, "the lease was renewed")
    assert leases.held == {"tag"}


async def test_a_lost_lease_is_reported(leases: Leases, connection: PipelinedConnection, redis: Redis) -> None:
    """What others have put back is not claimed any more: its call may run a second time, and the log says so."""
    hold(redis, leases, "mine", "taken")
    redis.zrem(STORE.unacked_index, "taken")
    with capture_logs() as logs:
        cut(connection)
        await until(lambda: set(leases.held) == {"mine"}, "the loss was noticed")

    assert [entry["messages"] for entry in logs if entry["event"] == "leases_lost"] == [1]


async def test_a_dead_workers_messages_come_back(connection: PipelinedConnection, redis: Redis) -> None:
    """Leases that nobody renews run out, and whichever worker lives puts the messages back, with a ring."""
    async with open_leases(connection) as dead:
        hold(redis, dead, "dead")
        begun = time.time()
    async with open_leases(connection) as alive:
        hold(redis, alive, "alive")
        await asyncio.sleep(SECONDS - 1)
        assert redis.llen(QUEUE) == 0
        await until(lambda: redis.llen(QUEUE), "it is in its queue", step=1)
        assert time.time() < begun + 1.5 * SECONDS

        assert [item[:19] for item in redis.lrange(QUEUE, 0, -1)] == ['{"redelivered":true']
        assert redis.llen(f"{STORE.notify_prefix}{QUEUE}") == 1
        assert redis.hkeys(STORE.unacked) == ["alive"]


async def test_after_an_outage_others_may_renew_first(connection: PipelinedConnection, redis: Redis) -> None:
    """For a part of a lease after each connect nothing is restored, however old it is."""
    async with open_leases(connection) as leases:
        await asyncio.sleep(SECONDS)
        cut(connection)
        await connection.connected()
        connected_at = time.time()
        hold(redis, leases, "mine", "old")
        redis.zadd(STORE.unacked_index, {"old": 1})
        leases.drop("old")
        await asyncio.sleep(SECONDS / 3 - 1)
        assert time.time() - SECONDS / 6 <= (begun_at(redis, "mine") or 0), "renewals went on"
        assert begun_at(redis, "old") == 1
        await until(lambda: begun_at(redis, "old") is None, "it was restored", step=1)
        assert time.time() < connected_at + SECONDS

        assert leases.held == {"mine"}


async def test_a_redis_that_wakes_up_takes_no_lease_for_expired(bed: Bed, redis: Redis) -> None:
    """Frozen for three leases with all of its workers' commands in its sockets: nobody's messages are given to others."""
    async with (
        open_connection(bed.redis.url) as one,
        open_connection(bed.redis.url) as two,
        open_leases(one) as first,
        open_leases(two) as second,
    ):
        hold(redis, first, "one")
        hold(redis, second, "two")
        await asyncio.sleep(SECONDS)
        bed.redis.freeze()
        await asyncio.sleep(3 * SECONDS)
        bed.redis.thaw()
        await asyncio.sleep(2 * SECONDS)

        assert first.held == {"one"}
        assert second.held == {"two"}
        assert redis.llen(QUEUE) == 0


async def test_a_redis_without_memory_is_an_outage(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For three leases it takes no renewal: an idle worker that looks first afterwards lets the others renew."""
    async with open_connection(redis_url) as one, open_connection(redis_url) as two, open_leases(one) as busy:
        sent = spied(one, monkeypatch)
        hold(redis, busy, "running", "dead")
        busy.drop("dead")
        await asyncio.sleep(5)  # the other's looks are between its own
        async with open_leases(two) as idle:
            with full(redis), capture_logs() as logs:
                await asyncio.sleep(3 * SECONDS)
                seen = len(sent)
                await until(lambda: len(sent) > seen, "it has just looked in vain", step=0.5)
                await asyncio.sleep(1)  # and been refused
                assert "leases_not_renewed" in {entry["event"] for entry in logs}
            await until(lambda: redis.llen(QUEUE), "the dead one's is restored", step=1)

            assert not idle.held
            assert busy.held == {"running"}
            assert redis.hkeys(STORE.unacked) == ["running"]


@contextmanager
def full(redis: Redis) -> Generator[None]:
    """It refuses whatever needs memory."""
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


async def test_what_is_put_back_is_held_no_more(leases: Leases, redis: Redis) -> None:
    """Only what is held is put back, flagged if it may have been begun; twice is the same as once."""
    hold(redis, leases, "a", "b")
    leases.requeue(["a", "stranger"], begun=True)
    leases.requeue(["a"], begun=True)
    await until(lambda: redis.llen(QUEUE), "it is in its queue", step=1)

    assert leases.held == {"b"}
    assert [item[:19] for item in redis.lrange(QUEUE, 0, -1)] == ['{"redelivered":true']


async def test_what_is_put_back_is_settled_before_the_end(leases: Leases, redis: Redis) -> None:
    """Also when Redis does not take it at first."""
    hold(redis, leases, "a", "b")
    leases.requeue(["a"], begun=False)
    await leases.settled()
    assert redis.llen(QUEUE) == 1

    with full(redis):
        leases.requeue(["b"], begun=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await leases.settled()
    await leases.settled()
    assert redis.llen(QUEUE) == 2


async def test_messages_that_are_stuck_hold_up_nobody(connection: PipelinedConnection, redis: Redis) -> None:
    """More entries than one look takes that belong to nobody we know: what expired after them is restored."""
    strange = [f"strange-{number}" for number in range(1200)]
    redis.hset(STORE.unacked, mapping=dict.fromkeys(strange, "of another shape"))
    redis.zadd(STORE.unacked_index, dict.fromkeys(strange, 1.0))
    async with open_leases(connection) as dead:
        hold(redis, dead, "dead")
        redis.zadd(STORE.unacked_index, {"dead": 2})
    with capture_logs() as logs:

        def told() -> int:
            return sum(entry["messages"] for entry in logs if entry["event"] == "expired_leases_stuck")

        async with open_leases(connection):
            await until(lambda: redis.llen(QUEUE), "it is in its queue", step=1)
            await until(lambda: told() >= len(strange), "each of them is told", step=1)

    assert redis.hlen(STORE.unacked) == told() == len(strange)


async def test_looking_after_leases_outlives_errors(
    connection: PipelinedConnection, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a look raises is logged, and the next look comes."""

    async def broken() -> None:
        raise RuntimeError("broken")

    async with open_leases(connection) as leases:
        hold(redis, leases, "mine")
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(leases, "_restore", broken)
            await until(lambda: len(logs) > 1, "it went wrong twice", step=1)
        redis.zadd(STORE.unacked_index, {"mine": 1}, xx=True)
        await until(lambda: begun_at(redis, "mine") not in {None, 1}, "it was renewed", step=1)

        assert leases.held == {"mine"}
        assert {entry["event"] for entry in logs} == {"leases_not_looked_after"}


async def test_what_a_closed_line_cannot_put_back_is_left_for_the_end(
    leases: Leases, connection: PipelinedConnection, redis: Redis
) -> None:
    """Held, put back in vain, or perhaps reserved: the commands for the worker's end cover all of it."""
    hold(redis, leases, "held", "in vain", "too late", "acked")
    leases.expect(["perhaps", "never"])
    cut(connection)
    leases.requeue(["in vain"], begun=False)
    leases.ack("acked")
    await connection.aclose()
    leases.requeue(["too late"], begun=False)
    await until(lambda: "in vain" in leases.held, "it was not put back")

    assert leases.held == {"held", "in vain", "too late", "perhaps", "never"}
    assert leases.acked == {"acked"}
    for command in (*leases.ack_commands(leases.acked), *leases.requeue_commands(leases.held, begun=True)):
        redis.execute_command(*command)
    assert redis.llen(QUEUE) == 3
    assert redis.exists(STORE.unacked) == 0


async def test_thousands_go_in_pieces(leases: Leases, connection: PipelinedConnection, redis: Redis) -> None:
    """Redis takes no more than some thousand arguments a script: renewals, acks and returns come in parts."""
    tags = [f"t-{number}" for number in range(12_000)]
    leases.hold(tags, of=())
    redis.zadd(STORE.unacked_index, dict.fromkeys(tags, 1.0))
    cut(connection)
    await until(lambda: not redis.zcount(STORE.unacked_index, "-inf", 1), "all are renewed")
    for tag in tags[:6000]:
        leases.ack(tag)
    await leases.settled()
    leases.requeue(tags[6000:], begun=False)
    await until(lambda: not redis.exists(STORE.unacked_index), "all are back")

    assert not leases.held


@pytest.mark.usefixtures("leases")
async def test_leases_leave_messages_in_queues_alone(redis: Redis) -> None:
    """Nothing happens to what nobody has taken."""
    publish(redis, b"x")

    assert redis.lrange(QUEUE, 0, -1) == ["x"]
