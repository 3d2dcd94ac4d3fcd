"""What a worker consumes: nothing while its clock is too far off, also when it is between two connections then."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer

from toolfleet_workers.pool.bootsteps import ShutdownReason
from toolfleet_workers.pool.consumption import ConsumedNames, Consumption

QUEUE = Queue("tools.owls", Exchange("tools.owls"))


@pytest.fixture
def taking() -> Iterator[Consumer]:
    """On kombu's transport in memory, whose channels end as those on Redis do."""
    with Connection("memory://") as connection, connection.channel() as channel, Consumer(channel, [QUEUE]) as consumer:
        yield consumer


@pytest.fixture
def consumption(taking: Consumer) -> Consumption:
    def add(_: str) -> None:
        taking.add_queue(QUEUE)
        taking.consume()

    consumer: Any = SimpleNamespace(
        task_consumer=taking,
        app=SimpleNamespace(conf=SimpleNamespace(task_queues=[QUEUE])),
        call_soon=lambda function, *args: function(*args),
        cancel_task_queue=lambda queue: taking.cancel_by_queue(queue.name if isinstance(queue, Queue) else queue),
        add_task_queue=add,
    )
    return Consumption(SimpleNamespace(consumer=consumer))


def test_it_stops_and_begins_again(consumption: Consumption, taking: Consumer) -> None:
    """As often as the clock is set."""
    consumption.stop_if(True)
    assert not taking.consuming_from(QUEUE.name)

    consumption.stop_if(False)
    assert taking.consuming_from(QUEUE.name)


def test_what_is_looked_at_on_a_connection_that_has_ended_ends_no_worker(
    consumption: Consumption, taking: Consumer
) -> None:
    """Also what waits for its turn until the worker's end."""
    consumption.stop_if(True)
    channel: Any = taking.channel
    channel.close()

    consumption.stop_if(False)
    consumption.stop_if(True)


def test_a_worker_names_what_it_consumes(consumption: Consumption, taking: Consumer) -> None:
    """Nothing while its clock is off or before it has begun; between two connections what it had."""
    worker = SimpleNamespace(consumer=SimpleNamespace(task_consumer=None))
    names = ConsumedNames(worker)
    assert names() == ConsumedNames(SimpleNamespace())() == ()
    worker.consumer.task_consumer = taking
    assert names() == (QUEUE.name,)
    consumption.stop_if(True)
    assert names() == ()
    consumption.stop_if(False)
    assert names() == (QUEUE.name,)
    worker.consumer.task_consumer = None
    assert names() == (QUEUE.name,)


@pytest.mark.parametrize(
    ("sig", "how", "restarts"), [("SIGTERM", "Warm", True), ("SIGINT", "Warm", False), ("SIGQUIT", "Cold", False)]
)
def test_a_signal_says_whether_a_worker_comes_back(sig: str, how: str, restarts: bool) -> None:
    """SIGTERM is what supervisors send."""
    ending = ShutdownReason()
    ending.on_shutting_down(sender="worker", sig=sig, how=how, exitcode=0)
    assert ending.is_restart is restarts


def test_a_paused_queue_is_left_and_taken_up_again(consumption: Consumption, taking: Consumer) -> None:
    """Its worker still serves it, for agents and operators; to hear the same again changes nothing."""
    names = ConsumedNames(SimpleNamespace(consumer=SimpleNamespace(task_consumer=taking)), consumption)
    for _ in range(2):
        consumption.pause(lambda _: True)
        assert not taking.consuming_from(QUEUE.name)
        assert names() == (QUEUE.name,)
        assert consumption.paused == {QUEUE.name}
    for _ in range(2):
        consumption.pause(lambda _: False)
        assert taking.consuming_from(QUEUE.name)
        assert (names(), consumption.paused) == ((QUEUE.name,), frozenset())


def test_a_clock_that_is_set_resumes_no_paused_queue(consumption: Consumption, taking: Consumer) -> None:
    """And the other way round; each ends by itself."""
    consumption.stop_if(True)
    consumption.pause(lambda _: True)
    consumption.stop_if(False)
    assert not taking.consuming_from(QUEUE.name)
    consumption.stop_if(True)
    consumption.pause(lambda _: False)
    assert not taking.consuming_from(QUEUE.name)
    consumption.stop_if(False)
    assert taking.consuming_from(QUEUE.name)


def test_what_somebody_else_has_ended_is_not_begun_with_a_resuming(consumption: Consumption, taking: Consumer) -> None:
    """An operator has had the worker consume it no more, by remote control."""
    taking.cancel_by_queue(QUEUE.name)
    consumption.pause(lambda _: True)
    consumption.pause(lambda _: False)
    assert not taking.consuming_from(QUEUE.name)


def test_a_pause_between_two_connections_is_heard_later(consumption: Consumption, taking: Consumer) -> None:
    """Nothing is done to a connection that has ended, and nothing is taken for done."""
    channel: Any = taking.channel
    channel.close()
    consumption.pause(lambda _: True)
    assert consumption.paused == frozenset()
