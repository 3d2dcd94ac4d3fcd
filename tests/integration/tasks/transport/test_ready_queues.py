"""Which queues a turn asks Redis for, and how those are found that no bell tells of."""

import pytest
from redis import Redis

from support.clocks import HandClock
from support.workers.held_messages import message, publish
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.transport.reservations import AT_ONCE, ReadyQueues

FEW = [f"tools.few-{number}" for number in range(5)]
MANY = [f"tools.many-{number}" for number in range(1500)]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ready(connection: PipelinedConnection, clock: HandClock) -> ReadyQueues:
    return ReadyQueues(connection, "", clock)


async def test_few_queues_are_all_asked_for(ready: ReadyQueues) -> None:
    """Each in its turn the first, but for those that are ready: what has rung comes before what was left."""
    firsts = [ready.choose(FEW)[0] for _ in FEW]
    ready.put([FEW[3]])
    ready.note(FEW[4])
    chosen = ready.choose(FEW)

    assert sorted(firsts) == sorted(chosen) == FEW
    assert chosen[:2] == [FEW[4], FEW[3]]
    assert not ready.is_any(FEW)


async def test_of_many_only_those_that_are_ready_are_asked_for(ready: ReadyQueues) -> None:
    """A bounded number at once, and none twice before all others have been."""
    assert ready.choose(MANY) == []
    ready.put(MANY[: 2 * AT_ONCE])
    ready.note(MANY[-1])
    wait_queue = [ready.choose(MANY) for _ in range(3)]

    assert [len(turn) for turn in wait_queue] == [AT_ONCE, AT_ONCE, 1]
    assert [queue for turn in wait_queue for queue in turn] == [MANY[-1], *MANY[: 2 * AT_ONCE]]
    assert not ready.is_any(MANY)


async def test_those_that_are_not_offered_stay_ready(ready: ReadyQueues) -> None:
    """A worker that may begin calls of some modules only loses nothing of the others."""
    ready.put(MANY[:2])

    assert ready.choose(MANY[1:]) == [MANY[1]]
    assert ready.is_any(MANY)
    assert not ready.is_any(MANY[1:])
    assert ready.choose(MANY) == [MANY[0]]


async def test_what_no_bell_tells_of_is_found_once_a_second(ready: ReadyQueues, clock: HandClock, redis: Redis) -> None:
    """All queues are looked at by three commands that take nothing; in between and while it is not time, by none."""
    redis.lpush(MANY[700], message())
    publish(redis, message(), queue=MANY[-1])
    before = redis.info("commandstats")["cmdstat_eval"]["calls"]
    await ready.refresh(MANY)
    assert redis.info("commandstats")["cmdstat_eval"]["calls"] == before + 3
    assert ready.choose(MANY) == [MANY[700], MANY[-1]]
    assert redis.llen(MANY[700]) == 1

    clock.now = 0.9
    assert ready.seconds_left == 0.1
    await ready.refresh(MANY)
    assert not ready.is_any(MANY)
    clock.now = 1.1
    assert ready.seconds_left == 0.01
    await ready.refresh(MANY)
    assert ready.is_any(MANY)


async def test_a_busy_worker_looks_at_all_more_often(ready: ReadyQueues, clock: HandClock, redis: Redis) -> None:
    """Of many that were notified its next wait brings the first only. How often depends on how many there are."""
    await ready.refresh(MANY)
    redis.lpush(MANY[0], message())
    clock.now = 0.1
    await ready.refresh(MANY, is_busy=True)
    assert not ready.is_any(MANY)
    clock.now = 0.16
    await ready.refresh(MANY)
    assert not ready.is_any(MANY)
    await ready.refresh(MANY, is_busy=True)
    assert ready.choose(MANY) == [MANY[0]]
    assert ready.seconds_left == 1


async def test_all_are_looked_at_when_bells_may_be_lost(ready: ReadyQueues, redis: Redis) -> None:
    """At once."""
    await ready.refresh(MANY)
    redis.lpush(MANY[0], message())
    ready.doubt()
    await ready.refresh(MANY)

    assert ready.choose(MANY) == [MANY[0]]


async def test_few_queues_need_no_look(ready: ReadyQueues, redis: Redis) -> None:
    """Each turn asks for all of them."""
    redis.lpush(FEW[0], message())
    await ready.refresh(FEW)

    assert not ready.is_any(FEW)
    assert ready.seconds_left == 1
