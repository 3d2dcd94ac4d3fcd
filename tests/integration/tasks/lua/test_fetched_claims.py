"""Which calls are claimed as their messages are taken, and how such a claim is taken back."""

import json
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.workers.ledgers import begun, worker_ledger
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.calls import RetryTerms
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import call_message
from toolfleet_tasks.messages.ids import kept_seconds, wake_key
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.transport import scripts as queues

KEYS, QUEUE, WORKER = Keys(), "tools.research", "here"
READ = published(effect="read", deadline_at=time.time() + 3600)
RECORD, STATES = KEYS.call(READ.call_id), Keys().queue_states


async def take(redis: Redis, call: PublishedCall | str = READ, *, lease_ms: int = 15_000, **others: Any) -> str:
    """Publish a call, or any message, and take it; return the id of the call that was claimed so, or nothing."""
    text = call if isinstance(call, str) else call_message(call, text=json_text.dump(call), origin="", now=time.time())
    await redis.lpush(KEYS.queue(QUEUE), text)
    _, _, tag, _, item, call_id = await reserve(redis, lease_ms=lease_ms, **others)
    assert (tag, item) == ("wab-0-0", text)
    return str(call_id)


async def reserve(redis: Redis, *, wanted: int = 1, lease_ms: int = 15_000, **others: Any) -> Any:
    command = queues.RESERVE.command(
        unacked="unacked",
        unacked_index="unacked_index",
        queues=[KEYS.queue(QUEUE)],
        wanted=wanted,
        tag="wab-0-",
        base=KEYS.begin,
        reserve_ms=1000,
        lease_ms=lease_ms,
        worker=WORKER,
        record_seconds=kept_seconds(None, Settings()),
        **others,
    )
    return await redis.eval(*command[1:])


def made_at(token: bytes | str | None) -> float:
    """When a claim was made, as its token says; it says of which message, and by whom, as well."""
    tag, microseconds, worker = str(token).split("~")
    assert (tag, worker) == ("wab-0-0", WORKER)
    return int(microseconds, 16) / 1e6


async def give_back(redis: Redis, *, begun: bool) -> None:
    command = queues.REQUEUE.command(
        unacked="unacked",
        unacked_index="unacked_index",
        queue_prefix="",
        notify_prefix=KEYS.notify_key(""),
        begun="01"[begun],
        record_prefix=KEYS.call(""),
        tags=["wab-0-0"],
    )
    assert await redis.eval(*command[1:]) == 1


async def test_a_call_whose_arguments_stand_apart_is_claimed_alike(redis: Redis) -> None:
    """And its claim is given back with it."""
    text = Seal(None).seal_apart(READ)
    assert text is not None
    item = call_message(READ, text=text, origin="", now=time.time())

    assert await take(redis, item) == READ.call_id
    assert await redis.hget(RECORD, "as") == "go"
    await give_back(redis, begun=False)
    assert await redis.exists(RECORD) == 0
    assert await redis.rpop(KEYS.queue(QUEUE)) == item


async def test_a_claim_is_as_the_ledger_makes_it(redis: Redis, redis_url: str) -> None:
    """Its record has the same fields, and lives as long, whichever script has begun the attempt; its token says when, and by whom."""
    before = time.time()
    assert await take(redis) == READ.call_id
    after = time.time()
    early, ttl = await redis.hgetall(RECORD), await redis.ttl(RECORD)
    await redis.delete(RECORD)
    async with worker_ledger(redis_url) as own:
        await begun(own, READ)
        late, late_ttl = await redis.hgetall(RECORD), await redis.ttl(RECORD)

    assert before - 1 < made_at(early.pop("token")) < after + 1
    assert before - 1 < float(early.pop("lease")) / 1000 - 15 < after + 1
    assert early == {name: value for name, value in late.items() if name not in {"token", "lease"}}
    assert abs(ttl - late_ttl) <= 2


@pytest.mark.parametrize(
    "changes",
    [
        {"effect": "once"},  # a repeat would do harm, and nobody could say whether it was begun
        {"effect": None},
        {"effect": "read", "idempotency_key": wake_key("w", "then")},  # its record lives longer
        {"effect": "read", "retry": RetryTerms(max_retries=0)},  # the claim's attempt would be its only one
    ],
)
async def test_others_are_only_taken(redis: Redis, changes: dict[str, Any]) -> None:
    """Their messages do not say that they may begin so."""
    assert await take(redis, READ.model_copy(update=changes)) == ""
    assert await redis.exists(RECORD) == 0


@pytest.mark.parametrize("key", [RECORD, KEYS.breaker("research"), STATES], ids=["record", "breaker", "paused"])
async def test_nothing_is_claimed_of_which_anything_is_known(redis: Redis, key: str) -> None:
    """A record of the call, a breaker of its module, or any queue that is paused: the ledger judges it."""
    await redis.hset(key, "some", "thing")
    await redis.expire(key, 60)

    assert await take(redis) == ""
    assert await redis.hgetall(key) == {"some": "thing"}


async def test_a_key_of_another_type_costs_no_message(redis: Redis) -> None:
    """Somebody's key stands in the record's place: the message is taken, and the ledger says what is wrong."""
    await redis.set(RECORD, "of another type", ex=60)

    assert await take(redis) == ""


@pytest.mark.parametrize("known", [None, "call-1"])
async def test_of_messages_that_are_taken_together_each_is_judged(redis: Redis, known: str | None) -> None:
    """Also one that is there twice: its call begins once, under the tag of the first."""
    if known:
        await redis.hset(KEYS.call(known), "some", "thing")
        await redis.expire(KEYS.call(known), 60)
    for number in (0, 1, 2, 2):
        call = READ.model_copy(update={"call_id": f"call-{number}"})
        text = call_message(call, text=json_text.dump(call), origin="", now=time.time())
        await redis.lpush(KEYS.queue(QUEUE), text)
    _, mark, *found = await reserve(redis, wanted=4)

    tags = [f"wab-0-{number}" for number in range(4)]
    assert found[::4] == tags
    assert found[3::4] == ["call-0", "" if known else "call-1", "call-2", ""]
    assert await redis.hget(KEYS.call("call-2"), "token") == tags[2] + mark
    assert sorted(await redis.hkeys("unacked")) == await redis.zrange("unacked_index", 0, -1) == tags


@pytest.mark.parametrize("others", [{"lease_ms": 0}, {"avoided": [1]}, {"bounds": [(1, 5, KEYS.running("research"))]}])
async def test_a_worker_says_whether_it_claims(redis: Redis, others: dict[str, Any]) -> None:
    """Not at all, none of this queue's, or none of a module that has a bound."""
    assert await take(redis, **others) == ""


async def test_a_redelivered_call_is_judged(redis: Redis) -> None:
    """Somebody has had it, and may have died with it."""
    text = call_message(READ, text="{}", origin="", now=time.time())

    assert await take(redis, '{"redelivered":true,' + text[1:]) == ""


@pytest.mark.parametrize("begin", ["1e9 read c", "9999999999 read c", "60 read", '60 read c"d', "60 READ c", ["60"]])
async def test_what_is_no_such_word_claims_nothing(redis: Redis, begin: object) -> None:
    """Somebody else's message may have such a field."""
    text = json.dumps({"begin": begin, "body": "W10="}, separators=(",", ":"))

    assert await take(redis, text) == ""
    assert await redis.exists(KEYS.call("c")) == 0


async def test_a_message_that_is_given_back_unbegun_takes_its_claim_along(redis: Redis) -> None:
    """In one step: whoever takes it next begins its first attempt. One that may have been begun leaves the claim there."""
    await take(redis)
    await give_back(redis, begun=False)
    assert await redis.exists(RECORD) == 0
    await redis.delete(KEYS.queue(QUEUE))

    await take(redis)
    await give_back(redis, begun=True)
    assert made_at(await redis.hget(RECORD, "token"))


async def test_nobody_elses_claim_is_taken_back(redis: Redis) -> None:
    """The call has ended, or is another worker's by now."""
    await take(redis)
    await redis.hset(RECORD, "token", "another")
    await give_back(redis, begun=False)

    assert await redis.eval(*queues.FORGET.command(record=RECORD, token="wab-0-0")[1:]) == 0
    assert await redis.hget(RECORD, "token") == "another"
    assert await redis.eval(*queues.FORGET.command(record=RECORD, token="another")[1:]) == 1
    assert await redis.exists(RECORD) == 0
