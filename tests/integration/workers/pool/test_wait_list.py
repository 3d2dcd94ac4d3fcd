"""Which of the jobs that wait for a slot is next."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from support.waiting import PATIENCE_SECONDS, wait_until
from support.workers.held_messages import (
    KEYS,
    QUEUE,
    cut,
    message,
    open_connection,
    open_leases,
    publish,
    start_reading,
    stop_reading,
)
from toolfleet_registry.system.shared_timers import shared_timers
from toolfleet_tasks.fairness import FairSlots
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.transport.fetcher import Fetcher, Message, NotifyKeys
from toolfleet_tasks.transport.reservations import Quarantine
from toolfleet_tasks.transport.scripts import RESERVE
from toolfleet_workers.pool.asyncio_pool import Assignment, TaskRun, WaitingRuns


def job() -> TaskRun:
    return TaskRun(Assignment.from_celery(print, (), {}, {}), shared_timers(asyncio.get_running_loop()))


def args(tag: str, queue: str) -> tuple[Any, ...]:
    return ("task", "id", {"properties": {"delivery_tag": tag}, "delivery_info": {"routing_key": queue}})


async def test_jobs_begin_in_their_order() -> None:
    """Where nobody counts queues: as soon as the pool runs fewer than it may."""
    waiting, jobs = WaitingRuns(), [job() for _ in range(3)]
    for one in jobs:
        waiting.add(one, ())

    assert waiting.next(is_free=False) is None
    assert [waiting.next(is_free=True) for _ in range(4)] == [*jobs, None]


async def test_a_module_whose_retries_wait_holds_up_no_other() -> None:
    """They wait for slots of their own; a call that was given one as it was taken begins at once."""
    waiting, slots = WaitingRuns(), FairSlots(8)
    waiting.slots = slots
    for _ in range(8):
        slots.take("tools.owls")
    retries, cat = [job() for _ in range(2)], job()
    for number, one in enumerate(retries):
        slots.defer(f"{number}")
        waiting.add(one, args(f"{number}", "tools.owls"))
    slots.take("tools.cats")
    waiting.add(cat, args("cat", "tools.cats"))
    assert [waiting.next(is_free=False) for _ in range(2)] == [cat, None]
    slots.give_back("cat", "tools.cats")
    slots.give_back("", "tools.owls")

    assert [waiting.next(is_free=False) for _ in range(2)] == [retries[0], None]
    waiting.clear()
    slots.give_back("", "tools.owls")
    assert waiting.next(is_free=True) is None


class Worker:
    """Has the jobs of `QUEUE`'s messages begin, and those that were put off, as a pool does."""

    def __init__(self, slots: int) -> None:
        self.slots, self.waiting = FairSlots(slots), WaitingRuns()
        self.waiting.slots = self.slots
        self.slots.on_capacity = self.fill
        self.began = list[TaskRun]()
        self.delivered = list[str]()

    def queues(self) -> Sequence[str]:
        return [QUEUE]

    def capacity(self) -> int:
        return self.slots.open

    def burst(self) -> tuple[Sequence[str], int]:
        return [], 0

    def expect(self, count: int) -> None:
        self.slots.expect(count)

    def deliver(self, message: Message, queue: str) -> None:
        tag = message["properties"]["delivery_tag"]
        self.slots.take(queue)
        self.delivered.append(tag)
        self.start(job(), tag)

    def forget(self, tag: str) -> None:
        raise AssertionError(tag)

    def put_off(self, tag: str) -> TaskRun:
        """A job that was put off until now."""
        self.slots.defer(tag)
        return self.start(job(), tag)

    def start(self, one: TaskRun, tag: str) -> TaskRun:
        self.waiting.add(one, args(tag, QUEUE))
        self.fill()
        return one

    def fill(self) -> None:
        while (one := self.waiting.next(is_free=False)) is not None:
            self.began.append(one)


@dataclass
class Turn:
    """One in which the worker has asked for as many messages as there is room for, and Redis's answer is on its way."""

    worker: Worker
    connection: PipelinedConnection
    taking: asyncio.Task[bool]

    async def end(self) -> None:
        start_reading(self.connection)
        await asyncio.wait_for(self.taking, PATIENCE_SECONDS)


@pytest.fixture
async def turn(redis_url: str) -> AsyncIterator[Turn]:
    """Of a worker with two slots, one of which is free; there is a message for it."""
    worker = Worker(2)
    worker.slots.take(QUEUE)
    with Redis.from_url(redis_url) as redis:
        redis.script_load(RESERVE.text)  # a Redis that does not know it would have to be asked once more
        async with open_connection(redis_url) as connection, open_leases(connection) as leases:
            intake = Fetcher(
                worker,
                connection=connection,
                notify_keys=NotifyKeys(connection, lambda _: connection, KEYS.notify_key("")),
                leases=leases,
                quarantine=Quarantine(KEYS.quarantine, KEYS.quarantined),
            )
            publish(redis, message("1"))
            stop_reading(connection)
            taking = asyncio.create_task(intake.take(lambda: (worker.queues(), worker.capacity())))
            await wait_until(lambda: redis.llen(QUEUE) == 0, "Redis has answered")
            yield Turn(worker, connection, taking)
            await asyncio.wait([taking], timeout=PATIENCE_SECONDS)


async def test_what_a_turn_has_asked_for_is_nobody_elses(turn: Turn) -> None:
    """A job that was put off until then waits for the turn's end, and for a slot: else there would be one call too many."""
    worker = turn.worker
    late = worker.put_off("late")
    await turn.end()
    assert len(worker.delivered) == 1
    assert worker.slots.capacity_of(QUEUE) == 0
    assert len(worker.began) == 1, "the message that has its slot waits behind no other"
    worker.slots.give_back(worker.delivered[0], QUEUE)

    assert worker.began[1:] == [late]


async def test_what_a_turn_did_not_bring_is_for_those_who_wait(turn: Turn) -> None:
    """Its answer is lost: a job that was refused meanwhile begins as soon as the turn is over."""
    worker = turn.worker
    worker.slots.resize(3)
    first = worker.put_off("first")
    assert worker.began == [first], "the turn has asked for one of the two that are free"
    second = worker.put_off("second")
    assert worker.began == [first]
    cut(turn.connection)
    await asyncio.wait([turn.taking], timeout=PATIENCE_SECONDS)
    assert isinstance(turn.taking.exception(), RedisConnectionLost)

    assert worker.began == [first, second]


@pytest.mark.parametrize("how", ["given back", "resized", "given up"])
async def test_a_job_that_was_refused_begins_when_there_is_room(how: str) -> None:
    """Also where no job has ended: a message was given back, there are more slots, or the one before it in its queue was given up."""
    worker = Worker(1)
    worker.slots.take(QUEUE)
    jobs = [worker.put_off(tag) for tag in ("first", "second")]
    if how == "given up":
        worker.slots.give_back("first", QUEUE)
        assert worker.began == jobs[:1], "it is told of its end"
    if how == "resized":
        worker.slots.resize(2)
    else:
        worker.slots.give_back("", QUEUE)

    assert worker.began == (jobs if how == "given up" else jobs[:1])
