"""How a worker takes messages, and what becomes of those that are none."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from bed.fleet import pass_time
from support.waiting import wait_until
from support.workers.fetching_worker import OTHER, FetchingWorker, Taker, wait_until_waiting, working
from support.workers.held_messages import KEYS, QUEUE, STORE, cut, evals, message, publish, start_reading, stop_reading
from toolfleet_tasks.transport import fetcher as intake_module
from toolfleet_tasks.transport import reservations, scripts
from toolfleet_tasks.transport.fetcher import BATCH, MOST_CONNECTIONS, Message


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        redis.script_load(scripts.RESERVE.text)  # a Redis that does not know it has to be asked once more
        yield redis


@pytest.fixture
async def worker(redis: Redis, redis_url: str) -> AsyncIterator[FetchingWorker]:
    async with working(redis_url, Taker()) as worker:
        yield worker


def quarantined(redis: Redis) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in redis.lrange(KEYS.quarantine, 0, -1)]


async def test_everything_is_taken_in_order(worker: FetchingWorker, redis: Redis) -> None:
    """What waits in the queue, also more than one turn takes, and what comes while the worker is asleep."""
    publish(redis, *[message(f"{number}") for number in range(3 * BATCH)])
    await wait_until(lambda: len(worker.taker.taken) == 3 * BATCH, "all are here")
    publish(redis, message("late"))
    await wait_until(lambda: "late" in worker.taker.ids, "it was woken")

    assert worker.taker.ids == [*map(str, range(3 * BATCH)), "late"]
    assert worker.leases.held == set(worker.taker.tags) == set(redis.hkeys(STORE.unacked))
    assert redis.exists(QUEUE) == 0


async def test_a_message_without_a_ring_is_found(worker: FetchingWorker, redis: Redis) -> None:
    """Somebody who knows no bells pushes into the list: the worker looks by itself, once a second."""
    await wait_until_waiting(redis)
    redis.lpush(QUEUE, message("silent"))
    await wait_until(lambda: worker.taker.ids, "it was found", seconds=2)


async def test_an_idle_worker_asks_rarely(worker: FetchingWorker, redis: Redis) -> None:
    """Without messages there is about one question a second."""
    before = evals(redis)
    await pass_time(60)

    assert evals(redis) - before <= 65


async def test_room_is_respected(redis_url: str, redis: Redis) -> None:
    """No more than there is room for; the rest follows as soon as there is more."""
    async with working(redis_url, Taker(slots=3)) as worker:
        publish(redis, *[message(f"{number}") for number in range(10)])
        await wait_until(lambda: len(worker.taker.taken) == 3, "it is full")
        before = evals(redis)
        await asyncio.sleep(5)  # less than until the leases are begun anew
        assert (redis.llen(QUEUE), evals(redis)) == (7, before)
        worker.taker.slots = 5
        worker.fetcher.wake()
        await wait_until(lambda: len(worker.taker.taken) == 5, "it has taken more")

        assert redis.llen(QUEUE) == 5


async def test_two_workers_share(redis_url: str, redis: Redis) -> None:
    """Both are woken for one backlog, none takes all of it, and nothing arrives twice."""
    async with working(redis_url, Taker(slots=60)) as one, working(redis_url, Taker(slots=60)) as two:
        publish(redis, *[message(f"{number}") for number in range(100)])
        await wait_until(lambda: len(one.taker.taken) + len(two.taker.taken) == 100, "all are taken")

        assert len({*one.taker.ids, *two.taker.ids}) == 100
        assert min(len(one.taker.taken), len(two.taker.taken)) >= 40


async def test_a_new_queue_is_noticed(worker: FetchingWorker, redis: Redis) -> None:
    """A queue that is consumed from now on, and one that is no longer."""
    publish(redis, message("cat"), queue=OTHER)
    worker.taker.names = [OTHER]
    worker.fetcher.wake()
    await wait_until(lambda: worker.taker.ids == ["cat"], "it was taken")
    worker.taker.names = []
    publish(redis, message("owl"))
    await asyncio.sleep(60)

    assert worker.taker.ids == ["cat"]


MANY = [f"tools.silent-{number}" for number in range(2998)]


@pytest.mark.parametrize("ring", [True, False])
async def test_a_turn_asks_for_the_queues_that_hold_something(ring: bool, redis_url: str, redis: Redis) -> None:
    """Of 3,000 only for the one whose bell has rung, or that was found by itself: what a call costs is not their number."""
    async with working(redis_url, Taker(names=[QUEUE, *MANY, OTHER])) as worker:
        await wait_until_waiting(redis, MOST_CONNECTIONS)
        sent, send = list[tuple[Any, ...]](), worker.connection.send
        worker.connection.send = lambda *command: sent.append(command) or send(*command)  # type: ignore[method-assign, func-returns-value]
        publish(redis, message("1")) if ring else redis.lpush(QUEUE, message("1"))
        await wait_until(lambda: worker.taker.ids == ["1"], "it was taken")
        reserves = [command for command in sent if command[1] == scripts.RESERVE.digest]

    assert [command[2] for command in reserves] == [3], "one key of its own"


async def test_a_redis_that_forgets_its_scripts_is_told_them_again(worker: FetchingWorker, redis: Redis) -> None:
    """A message that comes then is taken as soon as any other."""
    for turn in range(3):
        redis.script_flush()
        publish(redis, message(f"{turn}"))
        await wait_until(lambda: len(worker.taker.taken) == turn + 1, "it was taken")  # noqa: B023 - awaited

    assert worker.taker.ids == ["0", "1", "2"]
    assert worker.leases.held == set(worker.taker.tags) == set(redis.hkeys(STORE.unacked))


async def test_long_queues_among_thousands_take_turns(redis_url: str, redis: Redis) -> None:
    """With room for one message at a time."""
    async with working(redis_url, Taker(slots=0, names=[QUEUE, *MANY, OTHER])) as worker:
        for queue in (QUEUE, OTHER):
            publish(redis, *[message(queue) for _ in range(8)], queue=queue)
        for slots in range(1, 9):
            worker.taker.slots = slots
            worker.fetcher.wake()
            await wait_until(lambda: len(worker.taker.taken) == slots, "one more is here")  # noqa: B023 - awaited

    assert worker.taker.ids.count(QUEUE) == worker.taker.ids.count(OTHER) == 4


@pytest.mark.parametrize(("which", "moved", "taken"), [("connection", 5, 1), ("notify_key", 1, 0)])
async def test_a_lost_reserve_gives_its_messages_back_at_once(
    which: str, moved: int, taken: int, worker: FetchingWorker, redis: Redis
) -> None:
    """Redis has moved messages and its answer is lost: they are here a moment later, and count as never begun.

    The first one comes with the notification, over the connection that waits for it.
    """
    await wait_until_waiting(redis)
    stop_reading(getattr(worker, which))
    redis.lpush(QUEUE, *[message(f"{number}") for number in range(4)])
    publish(redis, message("4"))
    await wait_until(lambda: redis.hlen(STORE.unacked) == moved, "Redis has moved them")
    assert len(worker.taker.taken) == taken
    cut(getattr(worker, which))
    await wait_until(lambda: len(worker.taker.taken) == 5, "they came once more")

    assert sorted(worker.taker.ids) == [str(number) for number in range(5)]
    assert not any("redelivered" in message["headers"] for message in worker.taker.taken)
    assert worker.leases.held == set(redis.hkeys(STORE.unacked)) == set(worker.taker.tags)


@pytest.mark.parametrize(("which", "taken"), [("connection", 1), ("notify_key", 0)])
async def test_an_intake_that_ends_keeps_no_message(
    which: str, taken: int, worker: FetchingWorker, redis: Redis
) -> None:
    """Cancelled between the reserve and its answer: the messages go back into their queue."""
    await wait_until_waiting(redis)
    stop_reading(getattr(worker, which))
    redis.lpush(QUEUE, message("1"))
    publish(redis, message("2"))
    await wait_until(lambda: redis.hlen(STORE.unacked) == 1 + taken, "Redis has moved them")
    worker.running.cancel()
    await asyncio.wait([worker.running])
    start_reading(getattr(worker, which))
    await wait_until(lambda: redis.llen(QUEUE) == 2 - taken, "they are back")

    assert worker.leases.held == set(worker.taker.tags)
    assert len(worker.taker.tags) == taken


async def test_an_intake_that_ends_in_the_middle_gives_the_rest_back(worker: FetchingWorker, redis: Redis) -> None:
    """Cancelled while Celery stores something for the second of three messages: that one and the third go back."""

    def begin(message: Message) -> Awaitable[None] | None:
        if message["headers"]["id"] != "2":
            return None
        worker.taker.taken.pop()
        return asyncio.sleep(60)

    worker.taker.begin = begin
    publish(redis, message("1"), message("2"), message("3"))
    await wait_until(lambda: len(worker.leases.held) == 3 and worker.taker.ids, "the second one waits")
    await asyncio.sleep(1)
    worker.running.cancel()
    await wait_until(lambda: redis.llen(QUEUE) == 2, "two are back")

    assert worker.taker.ids == ["1"]
    assert worker.leases.held == set(worker.taker.tags)


async def test_closed_lines_end_the_intake(worker: FetchingWorker) -> None:
    """There is nothing to wait for then."""
    await worker.connection.aclose()
    await worker.notify_key.aclose()
    await asyncio.wait([worker.running])

    assert worker.running.done()
    assert worker.running.exception() is None


@pytest.mark.parametrize("which", ["connection", "notify_key"])
async def test_a_cut_line_is_no_end(which: str, worker: FetchingWorker, redis: Redis) -> None:
    """Messages that are published meanwhile arrive after the reconnect, each once."""
    for turn in range(3):
        await getattr(worker, which).connected()
        cut(getattr(worker, which))
        publish(redis, message(f"{turn}"))
        await wait_until(lambda: len(worker.taker.taken) == turn + 1, "it has arrived")  # noqa: B023 - awaited

    assert worker.taker.ids == ["0", "1", "2"]


async def test_a_redis_that_refuses_is_asked_again(worker: FetchingWorker, redis: Redis) -> None:
    """A script that fails is logged and costs nothing but time."""
    redis.set(STORE.unacked, "of another type")
    with capture_logs() as logs:
        publish(redis, message("1"))
        await wait_until(lambda: len(logs) > 2, "it was refused")
    redis.delete(STORE.unacked)
    await wait_until(lambda: worker.taker.ids == ["1"], "it has arrived")

    assert {entry["event"] for entry in logs} == {"queues_not_read"}


async def test_an_intake_outlives_errors(worker: FetchingWorker, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in a turn is logged, and the next turn comes."""

    def broken() -> int:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(worker.taker, "capacity", broken)
        worker.fetcher.wake()
        publish(redis, message("1"))
        await wait_until(lambda: len(logs) > 2, "it went wrong some times")
    await wait_until(lambda: worker.taker.ids == ["1"], "it has arrived")

    assert {(entry["event"], entry["log_level"]) for entry in logs} == {("queues_not_read", "error")}


def _deep(levels: int) -> bytes:
    return b'{"body": "", "headers": ' + b'{"a":' * levels + b"1" + b"}" * levels + b', "properties": {}}'


GARBAGE = {
    "nothing": b"",
    "binary": bytes(range(256)) * 100,
    "text": b"hello",
    "nested": b"[" * 200_000,
    "deep object": _deep(200_000),
    "number": b"17",
    "nan": b"NaN",
    "null": b"null",
    "list": b"[1, 2]",
    "empty object": b"{}",
    "python object": b'{"__type__": "datetime", "__value__": 17}',
    "python object inside": message(headers={"task": {"__type__": "uuid", "__value__": "no"}, "id": "1"}),
    "no body": message(body=None),
    "body of another type": message(body=[1]),
    "headers of another type": message(headers=[]),
    "properties of another type": message(properties="x"),
    "no task": message(headers={"id": "1"}),
    "no id": message(headers={"task": "toolfleet.execute"}),
    "id of another type": message(headers={"task": "toolfleet.execute", "id": 5}),
    "limits of another type": message(headers={"task": "t", "id": "1", "timelimit": 5}),
    "limits that are no times": message(headers={"task": "t", "id": "1", "timelimit": [float("nan"), 1]}),
    "queue of another type": message(properties={"delivery_info": {"routing_key": []}}),
    "protocol 1": message(
        headers={}, body=base64.b64encode(b'{"task": "toolfleet.execute", "id": "1", "args": []}').decode()
    ),
    "large": b'{"body": "' + b"x" * 5_000_000 + b'"}',
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_goes_to_quarantine(kind: str, worker: FetchingWorker, redis: Redis) -> None:
    """With a log line and a count; the messages before and after it run, and nothing is held for it."""
    with capture_logs() as logs:
        publish(redis, message("before"), GARBAGE[kind], message("after"))
        await wait_until(
            lambda: redis.llen(KEYS.quarantine) and set(worker.leases.held) == set(worker.taker.tags), "done"
        )

    (entry,) = quarantined(redis)
    kept = GARBAGE[kind].decode(errors="backslashreplace")
    assert worker.taker.ids == ["before", "after"]
    assert (entry["queue"], entry["message"]) == (QUEUE, kept[: 2**18])
    assert entry["reason"]
    assert redis.get(KEYS.quarantined) == "1"
    assert redis.hlen(STORE.unacked) == 2
    (record,) = [record for record in logs if record["event"] == "message_quarantined"]
    assert (record["queue"], record["so_far"], record["log_level"]) == (QUEUE, 1, "error")
    assert "message" not in record, "people's data is in it"


async def test_a_message_that_celery_chokes_on_goes_to_quarantine(worker: FetchingWorker, redis: Redis) -> None:
    """Whatever delivery raises; its room is free again."""

    def begin(message: Message) -> None:
        if message["headers"]["id"] == "bad":
            raise AttributeError("no attribute")

    worker.taker.begin = begin
    publish(redis, message("before"), message("bad"), message("after"))
    await wait_until(lambda: redis.llen(KEYS.quarantine), "it was set aside")

    assert worker.taker.ids == ["before", "after"]
    assert len(worker.taker.forgotten) == 1
    assert quarantined(redis)[0]["reason"] == "AttributeError('no attribute')"


async def test_odd_messages_that_celery_can_take_are_delivered(worker: FetchingWorker, redis: Redis) -> None:
    """Without delivery information, with numbers that are no JSON, or with a flag of another kind."""
    publish(
        redis,
        message("1", properties={}),
        message("2", properties={"delivery_info": "x"}),
        message("3", properties={"delivery_info": {}, "odd": float("nan")}),
        message("4", redelivered="yes"),
    )
    await wait_until(lambda: len(worker.taker.taken) == 4, "all are here")

    assert [taken["properties"]["delivery_info"]["routing_key"] for taken in worker.taker.taken] == [QUEUE] * 4
    assert [taken["headers"].get("redelivered", False) for taken in worker.taker.taken] == [False] * 3 + [True]


async def test_setting_aside_outlasts_an_outage(worker: FetchingWorker, redis: Redis) -> None:
    """The message is held until Redis has put it into quarantine, and is there once."""
    for number in range(5):
        publish(redis, b"bad")
        await wait_until(lambda: len(worker.leases.held) or redis.llen(KEYS.quarantine) > number, "it was taken")  # noqa: B023 - awaited
        cut(worker.connection)
    await wait_until(lambda: not worker.leases.held and redis.llen(KEYS.quarantine) >= 5, "all are set aside")

    assert redis.exists(STORE.unacked, QUEUE) == 0


async def test_what_cannot_be_set_aside_stays_held(worker: FetchingWorker, redis: Redis) -> None:
    """A key of another type stands in the list's place: it is tried once, logged, and left for the worker's end."""
    redis.set(KEYS.quarantine, "of another type")
    with capture_logs() as logs:
        publish(redis, b"bad", message("after"))
        await wait_until(lambda: logs and worker.taker.ids, "both are seen to")
    redis.delete(KEYS.quarantine)

    assert [entry["event"] for entry in logs] == ["message_not_quarantined"]
    assert worker.leases.held > set(worker.taker.tags)
    assert worker.leases.held == set(redis.hkeys(STORE.unacked)) == set(redis.zrange(STORE.unacked_index, 0, -1))


async def test_quarantine_is_bounded(worker: FetchingWorker, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the last ones."""
    monkeypatch.setattr(intake_module, "QUARANTINED_AT_MOST", 3)
    publish(redis, *[f"bad {number}".encode() for number in range(10)])
    await wait_until(lambda: redis.get(KEYS.quarantined) == "10", "all were set aside")

    assert [entry["message"] for entry in quarantined(redis)] == ["bad 9", "bad 8", "bad 7"]


async def test_only_as_many_are_taken_as_a_module_has_room_for(redis_url: str, redis: Redis) -> None:
    """By all workers together; the others stay in the queue, and other modules' are taken."""
    first, second = Taker(names=[QUEUE, OTHER]), Taker(names=[QUEUE, OTHER])
    async with working(redis_url, first, bound=2), working(redis_url, second, bound=2):
        publish(redis, *[message(f"{number}") for number in range(5)])
        publish(redis, *[message(f"cat-{number}") for number in range(5)], queue=OTHER)
        await wait_until(lambda: len(first.ids + second.ids) == 7, "what there is room for is here")
        assert sorted(redis.zrange("toolfleet:running:owls", 0, -1)) == ["0", "1"]
        assert redis.llen(QUEUE) == 3


async def test_a_full_module_makes_nobody_spin(redis_url: str, redis: Redis) -> None:
    """Nor does a call that comes meanwhile: workers look again once a second."""
    taker = Taker()
    async with working(redis_url, taker, bound=2):
        publish(redis, *[message(f"{number}") for number in range(5)])
        await wait_until(lambda: len(taker.ids) == 2, "two are here")
        await asyncio.sleep(1)
        before = evals(redis)
        publish(redis, message("late"))
        await pass_time(60)
        assert evals(redis) - before <= 125


async def test_a_place_that_becomes_free_is_used_at_once(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever worker hears of it: the call that had the place never claimed it, or has left it."""
    monkeypatch.setattr(reservations, "_POLL_SECONDS", 600.0)  # no look finds it
    first, second = Taker(), Taker(slots=0)
    async with working(redis_url, first, bound=1) as worker, working(redis_url, second, bound=1) as other:
        publish(redis, *[message(f"{number}") for number in range(4)])
        await wait_until(lambda: first.ids == ["0"], "one is here")
        worker.fetcher.release_slot(QUEUE, "0")
        await wait_until(lambda: first.ids == ["0", "1"], "the next one is here")
        redis.zadd("toolfleet:running:owls", {"1": 2**41})  # claimed
        first.slots, second.slots = 0, 9
        other.fetcher.wake()
        worker.fetcher.release_slot(QUEUE, "1")
        await worker.connection.send("PING")
        assert second.ids == []
        redis.zrem("toolfleet:running:owls", "1")
        worker.fetcher.release_slot(QUEUE, "1")
        await wait_until(lambda: second.ids == ["2"], "the other one has it")


async def test_a_place_is_kept_for_a_while_only(redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that took a call and died before it claimed it is in nobody's way."""
    monkeypatch.setattr(reservations, "_SLOT_MS", 1000)
    taker = Taker()
    async with working(redis_url, taker, bound=1):
        publish(redis, message("0"), message("1"))
        await wait_until(lambda: taker.ids == ["0"], "one is here")
        await wait_until(lambda: taker.ids == ["0", "1"], "its place has run out")


async def test_what_must_wait_and_what_is_no_call_needs_no_place(redis_url: str, redis: Redis) -> None:
    """A retry before its time, and garbage, are taken although the module is full."""
    taker = Taker()
    async with working(redis_url, taker, bound=1):
        publish(redis, message("0"))
        await wait_until(lambda: taker.ids == ["0"], "it is full")
        later = json.loads(message("later"))
        later["headers"]["eta"] = "2999-01-01T00:00:00+00:00"
        publish(redis, json.dumps(later).encode(), b"garbage", message("1"))
        await wait_until(lambda: quarantined(redis), "the garbage is out of the way")
        assert taker.ids == ["0", "later"]
    redis.delete(KEYS.quarantine, KEYS.quarantined)
