"""What happens at once inside Redis, script by script."""

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kombu.utils.json import dumps, loads
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Script
from toolfleet_tasks.redis_connection import is_one_of
from toolfleet_tasks.scripts import script
from toolfleet_tasks.transport import scripts

A, B, C = "tools.a", "tools.b", "tools.c"
MESSAGE = {"body": "e30=", "headers": {"id": "1"}, "properties": {"delivery_info": {}}}


@pytest.fixture(params=["", "some-fleet:"])
def key_prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keys(key_prefix: str) -> Keys:
    return Keys(key_prefix)


def held_keys(keys: Keys) -> tuple[str, str]:
    return f"{keys.prefix}unacked", f"{keys.prefix}unacked_index"


async def run(redis: Redis, script: Script, keys: Sequence[str], *arguments: object) -> Any:
    return await redis.eval(script.text, len(keys), *keys, *map(str, arguments))


async def publish(redis: Redis, keys: Keys, queue: str, *items: object) -> None:
    for item in items:
        await run(redis, scripts.PUBLISH, (keys.queue(queue), keys.notify_key(queue)), str(item))


async def reserve(
    redis: Redis, keys: Keys, queues: list[str], wanted: int, *, tag: str = "t-"
) -> tuple[bool, list[tuple[str, str, str]]]:
    """Whether something is left, and tag, queue and item of what was taken."""
    left, _, *found = await redis.eval(*reserving(keys, queues, wanted, tag=tag))
    return bool(left), [(found[i], queues[found[i + 1] - 1], found[i + 2]) for i in range(0, len(found), 4)]


def reserving(keys: Keys, queues: list[str], wanted: int, *, tag: str = "t-") -> tuple[Any, ...]:
    """The parameters of `EVAL`; no call is claimed."""
    unacked, index = held_keys(keys)
    _, *command = scripts.RESERVE.command(
        unacked=unacked,
        unacked_index=index,
        queues=[keys.queue(queue) for queue in queues],
        wanted=wanted,
        tag=tag,
        base=keys.begin,
        reserve_ms=1000,
        lease_ms=0,
        worker="",
        record_seconds=0,
    )
    return tuple(command)


async def put_back(redis: Redis, keys: Keys, *tags: str, begun: bool = True) -> int:
    arguments = (keys.prefix, keys.notify_key(""), int(begun), keys.call(""), *tags)
    return int(await run(redis, scripts.REQUEUE, held_keys(keys), *arguments))


async def restore(redis: Redis, keys: Keys, *, before: float, limit: int = 100) -> int:
    """How many were put back."""
    _, restored, _ = await looked_through(redis, keys, before=before, limit=limit)
    return restored


async def looked_through(redis: Redis, keys: Keys, *, before: float, limit: int) -> list[int]:
    """How many had expired, were put back, and could not be."""
    arguments = (keys.prefix, keys.notify_key(""), before, limit, before + 1000)
    return [int(count) for count in await run(redis, scripts.RESTORE, held_keys(keys), *arguments)]


@asynccontextmanager
async def full(redis: Redis) -> AsyncGenerator[None]:
    """It refuses whatever needs memory."""
    await redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await redis.config_set("maxmemory", 0)


def has_no_memory(error: ResponseError) -> bool:
    return is_one_of(("OOM",), error)


async def waiting(redis: Redis, keys: Keys, queue: str) -> list[str]:
    """A queue's items, the next one first."""
    return [str(item) for item in await redis.lrange(keys.queue(queue), 0, -1)][::-1]


async def rings(redis: Redis, keys: Keys, queue: str) -> int:
    return int(await redis.llen(keys.notify_key(queue)))


async def hold(redis: Redis, keys: Keys, tag: str, entry: str | bytes, *, since: float = 0) -> None:
    """An entry of `unacked` as somebody else wrote it."""
    await redis.hset(held_keys(keys)[0], tag, entry)
    await redis.zadd(held_keys(keys)[1], {tag: since})


async def is_held(redis: Redis, keys: Keys, tag: str) -> bool:
    unacked, index = held_keys(keys)
    return bool(await redis.hexists(unacked, tag)) and await redis.zscore(index, tag) is not None


async def test_a_publish_rings_once(redis: Redis, keys: Keys) -> None:
    """However many messages come, the bell holds one token; first come, first served."""
    await publish(redis, keys, A, 1, 2, 3)

    assert await waiting(redis, keys, A) == ["1", "2", "3"]
    assert await rings(redis, keys, A) == 1
    assert await rings(redis, keys, B) == 0


async def test_a_queue_that_is_no_list_refuses_the_publish(redis: Redis, keys: Keys) -> None:
    """Somebody's key of another type under a queue's name is an error, and no bell rings for it."""
    await redis.set(keys.queue(A), "not a list")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await publish(redis, keys, A, 1)
    assert await rings(redis, keys, A) == 0


async def test_reserved_messages_are_held_at_once(redis: Redis, keys: Keys) -> None:
    """What a worker gets stands in `unacked` as kombu would write it, with a lease that began now; the bell is silent."""
    await publish(redis, keys, A, dumps(MESSAGE))
    left, taken = await reserve(redis, keys, [A], 10)

    assert not left
    assert taken == [("t-0", A, dumps(MESSAGE))]
    assert loads(await redis.hget(held_keys(keys)[0], "t-0")) == [MESSAGE, "", A]
    assert abs(float(await redis.zscore(held_keys(keys)[1], "t-0") or 0) - time.time()) < 5
    assert await rings(redis, keys, A) == 0


async def test_room_is_respected_and_the_bell_rings_for_the_next(redis: Redis, keys: Keys) -> None:
    """No more than wanted is taken, the oldest first; for what is left one token lies there, and no second one."""
    await publish(redis, keys, A, *range(10))
    for turn in range(2):
        left, taken = await reserve(redis, keys, [A], 3, tag=f"{turn}-")
        assert left
        assert [item for _, _, item in taken] == [str(3 * turn + i) for i in range(3)]
        assert await rings(redis, keys, A) == 1
    await redis.delete(keys.notify_key(A))  # another worker was woken by it
    left, taken = await reserve(redis, keys, [A], 3, tag="2-")

    assert left
    assert await rings(redis, keys, A) == 1


async def test_exactly_what_is_wanted_leaves_no_bell(redis: Redis, keys: Keys) -> None:
    """A queue that was emptied to its last message is not rung for."""
    await publish(redis, keys, A, 1, 2, 3)
    left, taken = await reserve(redis, keys, [A], 3)

    assert (left, len(taken)) == (False, 3)
    assert await rings(redis, keys, A) == 0


async def test_each_queue_gets_its_share(redis: Redis, keys: Keys) -> None:
    """A long queue does not keep the others waiting; what they do not need is the long one's."""
    await publish(redis, keys, A, *range(100))
    await publish(redis, keys, B, *range(100))
    await publish(redis, keys, C, "single")
    left, taken = await reserve(redis, keys, [A, B, C], 30)
    counts = {queue: sum(1 for _, of, _ in taken if of == queue) for queue in (A, B, C)}

    assert left
    assert len(taken) == len({tag for tag, _, _ in taken}) == 30
    assert counts[C] == 1
    assert min(counts[A], counts[B]) >= 10
    assert [await rings(redis, keys, queue) for queue in (A, B, C)] == [1, 1, 0]


async def test_queues_take_turns(redis: Redis, keys: Keys) -> None:
    """With room for one message only, the first of the queues that are asked for decides."""
    for queue in (A, B, C):
        await publish(redis, keys, queue, *range(3))
    orders = [[A, B, C], [B, C, A], [C, A, B]]
    taken = [(await reserve(redis, keys, orders[turn % 3], 1, tag=f"{turn}-"))[1] for turn in range(6)]

    assert [queue for ((_, queue, _),) in taken] == [A, B, C, A, B, C]


async def test_nothing_is_taken_from_empty_queues(redis: Redis, keys: Keys) -> None:
    """And nothing is written."""
    assert await reserve(redis, keys, [A, B], 10) == (False, [])
    assert await redis.keys() == []


async def test_a_key_of_another_type_does_not_hide_the_other_queues(redis: Redis, keys: Keys) -> None:
    """A queue's name that is no list is passed over."""
    await redis.set(keys.queue(A), "not a list")
    await publish(redis, keys, B, "message")

    assert await reserve(redis, keys, [A, B], 10) == (False, [("t-0", B, "message")])


@pytest.mark.parametrize("broken", [0, 1])
async def test_nothing_is_taken_that_cannot_be_noted(broken: int, redis: Redis, keys: Keys) -> None:
    """If `unacked` or its index is of another type, the messages stay in their queues."""
    await publish(redis, keys, A, 1, 2)
    await redis.set(held_keys(keys)[broken], "of another type")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await reserve(redis, keys, [A], 10)
    assert await waiting(redis, keys, A) == ["1", "2"]


async def test_any_content_can_be_held_and_put_back(redis_url: str, keys: Keys) -> None:
    """What is no JSON, no text or empty goes through the hands of a worker unchanged."""
    items = [b"", b"{}", b"{ }", b"[]", b"no json", b'"quoted","",""]', b"\x00\xff\xfe", b"{" * 5000, "ü".encode()]
    async with Redis.from_url(redis_url) as redis:
        await redis.rpush(keys.queue(A), *items[::-1])
        _, _, *found = await redis.eval(*reserving(keys, [A], 100))
        assert found[2::4] == items
        assert await put_back(redis, keys, *[tag.decode() for tag in found[0::4]]) == len(items)

        assert (await redis.lrange(keys.queue(A), 0, -1))[::-1] == items


async def test_only_leases_that_are_held_can_be_renewed(redis: Redis, keys: Keys) -> None:
    """A renewal moves a lease's beginning to now; what somebody else has put back is reported, and not revived."""
    _, index = held_keys(keys)
    await hold(redis, keys, "mine", "[1]", since=1)

    assert await run(redis, scripts.RENEW, (index,), "mine", "lost", "gone") == ["lost", "gone"]
    assert abs(float(await redis.zscore(index, "mine") or 0) - time.time()) < 5
    assert await redis.zcard(index) == 1


@pytest.mark.parametrize("tags", [[], ["mine"]])
async def test_a_renewal_is_refused_when_writes_are(tags: list[str], redis: Redis, keys: Keys) -> None:
    """Also one of nothing, which otherwise leaves no trace: so an idle worker knows that nobody can renew."""
    _, index = held_keys(keys)
    await run(redis, scripts.RENEW, (index,))
    assert await redis.keys() == []
    await hold(redis, keys, "mine", "[1]", since=1)
    async with full(redis):
        with pytest.raises(ResponseError, check=has_no_memory):
            await run(redis, scripts.RENEW, (index,), *tags)
    await run(redis, scripts.RENEW, (index,))

    assert await redis.zrange(index, 0, -1, withscores=True) == [("mine", 1)]


async def test_nothing_is_put_back_without_memory(redis: Redis, keys: Keys) -> None:
    """It is an error, to be tried again, and the message stays as it was held."""
    await hold(redis, keys, "mine", f'["message","","{A}"]', since=1)
    async with full(redis):
        with pytest.raises(ResponseError, check=has_no_memory):
            await put_back(redis, keys, "mine")
        with pytest.raises(ResponseError, check=has_no_memory):
            await restore(redis, keys, before=2)

    assert await redis.zscore(held_keys(keys)[1], "mine") == 1
    assert await put_back(redis, keys, "mine") == 1


async def test_an_ack_forgets(redis: Redis, keys: Keys) -> None:
    """The message is gone, and a second ack finds nothing."""
    await publish(redis, keys, A, 1, 2, 3)
    await reserve(redis, keys, [A], 3)
    unacked, index = held_keys(keys)

    assert await run(redis, scripts.ACK, (unacked, index), "t-0", "t-1") == 2
    assert await run(redis, scripts.ACK, (unacked, index), "t-0", "t-1") == 0
    assert (await redis.hkeys(unacked), await redis.zrange(index, 0, -1)) == (["t-2"], ["t-2"])


async def test_what_is_put_back_comes_next(redis: Redis, keys: Keys) -> None:
    """Before what was waiting, in the old order, with a ring; a second time nothing happens."""
    await publish(redis, keys, A, *range(5))
    await reserve(redis, keys, [A], 3)
    await redis.delete(keys.notify_key(A))

    assert await put_back(redis, keys, "t-0", "t-1", "t-2", begun=False) == 3
    assert await put_back(redis, keys, "t-0", "t-1", "t-2", begun=False) == 0
    assert await waiting(redis, keys, A) == ["0", "1", "2", "3", "4"]
    assert await rings(redis, keys, A) == 1
    assert await redis.exists(*held_keys(keys)) == 0


async def test_a_message_is_flagged_once(redis: Redis, keys: Keys) -> None:
    """Redelivered three times: the flag stands there once, and nothing else has changed; never begun: no flag at all."""
    await publish(redis, keys, A, dumps(MESSAGE))
    item = ""
    for turn in range(3):
        await reserve(redis, keys, [A], 1, tag=f"{turn}-")
        await put_back(redis, keys, f"{turn}-0", begun=turn > 0)
        (item,) = await waiting(redis, keys, A)
        assert item.count("redelivered") == min(turn, 1)

    assert json.loads(item) == {"redelivered": True, **MESSAGE}


@pytest.mark.parametrize("exchange", ["toolfleet", ""])
@pytest.mark.parametrize("queue", ["tools.a", "toolfleet.control", "tools.with-dash_and.dots"])
async def test_what_kombu_holds_can_be_restored(exchange: str, queue: str, redis: Redis, keys: Keys) -> None:
    """A message that kombu's own transport has taken goes back into its queue, flagged, when its time is over."""
    message = MESSAGE | {"headers": {"argsrepr": '"x", "", "y"]'}}
    await hold(redis, keys, "kombu", dumps([message, exchange, queue]))

    assert await restore(redis, keys, before=1) == 1
    assert [json.loads(item) for item in await waiting(redis, keys, queue)] == [{"redelivered": True, **message}]
    assert await rings(redis, keys, queue) == 1


async def test_only_what_has_expired_is_restored(redis: Redis, keys: Keys) -> None:
    """Leases that began before the given time, the oldest first in the queue, and no more than allowed at once."""
    for number in range(5):
        await hold(redis, keys, f"old-{number}", f'[{number},"","{A}"]', since=100 + number)
    await hold(redis, keys, "young", f'["young","","{A}"]', since=200)

    assert await restore(redis, keys, before=150, limit=3) == 3
    assert await waiting(redis, keys, A) == ["0", "1", "2"]
    assert await restore(redis, keys, before=150) == 2
    assert await restore(redis, keys, before=150) == 0
    assert await is_held(redis, keys, "young")


async def test_what_cannot_be_put_back_is_not_lost(redis: Redis, keys: Keys) -> None:
    """Entries of nobody we know, and queues that are no lists: the messages stay in `unacked`, and others go their way."""
    await redis.set(keys.queue(B), "not a list")
    await hold(redis, keys, "foreign", "something else")
    await hold(redis, keys, "blocked", f'["message","","{B}"]')
    await hold(redis, keys, "good", f'["message","","{A}"]')

    assert await restore(redis, keys, before=1) == 1
    assert await waiting(redis, keys, A) == ['"message"']
    assert await is_held(redis, keys, "foreign")
    assert await is_held(redis, keys, "blocked")


async def test_what_cannot_be_put_back_holds_up_nobody(redis: Redis, keys: Keys) -> None:
    """The oldest entries cannot be put back, and are more than one look takes: the next look finds the others."""
    await redis.set(keys.queue(B), "not a list")
    await hold(redis, keys, "foreign", "something else")
    await hold(redis, keys, "blocked", f'["message","","{B}"]')
    await hold(redis, keys, "good", f'["message","","{A}"]', since=1)

    assert await looked_through(redis, keys, before=2, limit=2) == [2, 0, 2]
    assert await looked_through(redis, keys, before=2, limit=2) == [1, 1, 0]
    assert await is_held(redis, keys, "foreign")
    assert await looked_through(redis, keys, before=1002, limit=100) == [2, 0, 2]


async def test_a_lease_without_a_message_ends(redis: Redis, keys: Keys) -> None:
    """An index entry that nothing belongs to is removed."""
    await redis.zadd(held_keys(keys)[1], {"empty": 0})

    assert await restore(redis, keys, before=1) == 0
    assert await redis.exists(held_keys(keys)[1]) == 0


async def test_quarantine_keeps_the_last_ones_and_counts_all(redis: Redis, keys: Keys) -> None:
    """The message leaves `unacked` for a list of bounded length; the counter goes on."""
    names = (*held_keys(keys), keys.quarantine, keys.quarantined)
    for number in range(5):
        await hold(redis, keys, f"{number}", "[]")
        assert await run(redis, scripts.QUARANTINE, names, f"{number}", f"bad {number}", 3) == number + 1

    assert await redis.lrange(keys.quarantine, 0, -1) == ["bad 4", "bad 3", "bad 2"]
    assert await redis.exists(*held_keys(keys)) == 0


async def test_what_quarantine_does_not_take_stays_held(redis: Redis, keys: Keys) -> None:
    """Without memory, or with a key of another type in the list's place, nothing has changed."""
    names = (*held_keys(keys), keys.quarantine, keys.quarantined)
    await hold(redis, keys, "bad", "[]")
    async with full(redis):
        with pytest.raises(ResponseError, check=has_no_memory):
            await run(redis, scripts.QUARANTINE, names, "bad", "bad", 3)
    assert await redis.exists(keys.quarantine, keys.quarantined) == 0
    await redis.set(keys.quarantine, "not a list")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await run(redis, scripts.QUARANTINE, names, "bad", "bad", 3)

    assert await redis.exists(keys.quarantined) == 0
    assert await is_held(redis, keys, "bad")
    await redis.delete(keys.quarantine)


async def test_a_broken_counter_keeps_nothing_from_quarantine(redis: Redis, keys: Keys) -> None:
    """The message is in the list, once, and the count is 0."""
    names = (*held_keys(keys), keys.quarantine, keys.quarantined)
    await hold(redis, keys, "bad", "[]")
    await redis.set(keys.quarantined, "no number")

    assert await run(redis, scripts.QUARANTINE, names, "bad", "kept", 3) == 0
    assert await redis.lrange(keys.quarantine, 0, -1) == ["kept"]
    assert await redis.exists(*held_keys(keys)) == 0
    await redis.delete(keys.quarantined)


async def test_a_success_is_never_overwritten(redis: Redis, keys: Keys) -> None:
    """The first success stands; anything else gives way, also to a failure, and each write lives its time."""
    result = keys.result("1")
    order = [
        ("STARTED", 1),
        ("RETRY", 1),
        ("FAILURE", 1),
        ("SUCCESS", 1),
        ("STARTED", 0),
        ("FAILURE", 0),
        ("SUCCESS", 0),
    ]
    for number, (status, written) in enumerate(order):
        value = json.dumps({"status": status, "result": number})
        assert await run(redis, scripts.STORE, (result,), keys.call("1"), "1", value, 100, "") == written

    assert json.loads(await redis.get(result) or "") == {"status": "SUCCESS", "result": 3}
    assert 0 < await redis.ttl(result) <= 100


async def test_what_is_stored_is_announced_if_wanted(redis: Redis, keys: Keys) -> None:
    """The announcement goes to the result's channel when the result stands; an empty one is none."""
    result, call = keys.result("1"), (keys.call("1"), "1")
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(result)
        await pubsub.get_message(timeout=PATIENCE_SECONDS)
        await run(redis, scripts.STORE, (result,), *call, '{"status": "STARTED"}', 100, "")
        await run(redis, scripts.STORE, (result,), *call, '{"status": "SUCCESS"}', 100, "done")
        await run(redis, scripts.STORE, (result,), *call, '{"status": "FAILURE"}', 100, "too late")
        await redis.publish(result, "end")
        said = [(await pubsub.get_message(timeout=PATIENCE_SECONDS) or {})["data"] for _ in range(2)]

    assert said == ["done", "end"]


async def test_workers_of_one_mode_live_side_by_side(redis: Redis, keys: Keys) -> None:
    """Another mode is refused, by the name of a worker that lives; the notes expire with the last worker."""
    announce = script("presence/announce")
    assert await run(redis, announce, (keys.modes,), "fast", "one", 20) is None
    assert await run(redis, announce, (keys.modes,), "fast", "two", 20) is None
    assert str(await run(redis, announce, (keys.modes,), "stock", "three", 20)).startswith("fast ")
    await redis.zadd(keys.modes, {"fast one": 1, "fast two": 1})

    assert await run(redis, announce, (keys.modes,), "stock", "three", 20) is None
    assert await redis.zrange(keys.modes, 0, -1) == ["stock three"]
    assert 0 < await redis.ttl(keys.modes) <= 20


async def test_a_lease_from_before_redis_was_set_back_begins_now(redis: Redis, keys: Keys) -> None:
    """Its worker may have died: nobody else would get the message until the clock has come as far again."""
    index = held_keys(keys)[1]
    await redis.zadd(index, {"early": time.time() + 600, "mine": time.time() - 1})
    before = await redis.zscore(index, "mine")
    await looked_through(redis, keys, before=0, limit=10)

    assert abs(float(await redis.zscore(index, "early") or 0) - time.time()) < 5
    assert await redis.zscore(index, "mine") == before
    await redis.delete(index)
