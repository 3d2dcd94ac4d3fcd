"""Which workers are counted as having died with a message, as it is put back."""

import json
from typing import Any

import pytest
from redis import Redis

from support.waiting import wait_until
from support.workers.held_messages import KEYS, QUEUE, STORE, cut, message, open_connection
from toolfleet_tasks.messages.envelope import DIED, deaths_of, with_deaths
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.transport.fetcher import read_message
from toolfleet_tasks.transport.leases import Leases

ADA, BOB, OLD = "wada0-1-0", "wb0b-3-2", "5f3a-1-0"


def requeue(redis: Redis, tag: str, item: str) -> str:
    """What lies in the queue when the lease of a message has run out that was held under this tag."""
    redis.hset(STORE.unacked, tag, f'[{item},"","{QUEUE}"]')
    redis.zadd(STORE.unacked_index, {tag: 1})
    keys = (2, STORE.unacked, STORE.unacked_index)
    holders = (STORE.holder_prefix, STORE.left_prefix)
    redis.eval(scripts.RESTORE.text, *keys, STORE.queue_prefix, STORE.notify_prefix, "2", 10, "3", *holders)
    return str(redis.rpop(QUEUE))


def restored(redis: Redis, tag: str, item: str) -> dict[str, Any]:
    """The same, of a message that can be read."""
    return dict(json.loads(requeue(redis, tag, item)))


def test_a_message_knows_who_has_died_with_it(redis: Redis) -> None:
    """Each of the two, once; the rest of it is as it was."""
    first = restored(redis, ADA, message("1").decode())
    second = restored(redis, BOB, json.dumps(first, separators=(",", ":")))
    again = restored(redis, BOB, json.dumps(second, separators=(",", ":")))

    assert (first["redelivered"], first["died"]) == (True, "ada0")
    assert second["died"] == "ada0 b0b"
    assert set(again["died"].split()) == {"ada0", "b0b"}
    assert {**json.loads(message("1")), "redelivered": True, "died": "ada0 b0b"} == second


def test_holders_of_before_are_not_judged(redis: Redis) -> None:
    """Nothing says whether a worker of an earlier version has died."""
    assert "died" not in restored(redis, OLD, message("1").decode())


@pytest.mark.parametrize("item", ["{}", "[1]", "5"])
def test_what_is_no_message_stays_as_it_is(item: str, redis: Redis) -> None:
    """And is put back."""
    assert requeue(redis, ADA, item) == item


async def test_who_lives_has_not_died(redis_url: str, leases: Leases, redis: Redis) -> None:
    """A worker that is stopped or slow still listens; one that was cut off counts no more when it is back."""
    tag = f"{leases.next_tags()}0"
    name = tag[1:].partition("-")[0]
    counted = restored(redis, tag, message("1").decode())
    async with open_connection(redis_url) as subscribing:
        leases.show_life(subscribing)
        await wait_until(lambda: redis.pubsub_numsub(KEYS.holder(name))[0][1] == 1, "it listens")
        assert "died" not in restored(redis, tag, message("1").decode())
        back = restored(redis, ADA, json.dumps(counted, separators=(",", ":")))
        cut(subscribing)
        await wait_until(lambda: subscribing.is_connected, "it is back")
        await wait_until(lambda: redis.pubsub_numsub(KEYS.holder(name))[0][1] == 1, "it listens again")

    assert (counted["died"], back["died"]) == (name, "ada0")


async def test_who_was_told_to_end_has_not_died(leases: Leases, connection: PipelinedConnection, redis: Redis) -> None:
    """However it is cut off then."""
    tag = f"{leases.next_tags()}0"
    leases.leave()
    await connection.send("PING")

    assert "died" not in restored(redis, tag, message("1").decode())
    assert redis.ttl(KEYS.left(tag[1:].partition("-")[0])) > 3 * STORE.seconds


def test_a_call_takes_its_deaths_along() -> None:
    """From the message into its task's request, and into the message of its retry."""
    item = with_deaths(message("1").decode(), ("ada0", "b0b"))
    headers = read_message(item.encode(), QUEUE, "tag")["headers"]
    request = type("Request", (), headers)()

    assert headers[DIED] == "ada0 b0b"
    assert headers["redelivered"] is True
    assert deaths_of(request) == ("ada0", "b0b")
    assert with_deaths("{}", deaths_of(object())) == "{}"
    assert deaths_of(type("Request", (), {DIED: 5})()) == ()
