"""How a worker ends: what becomes of the calls that it runs, and of their messages."""

import signal
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from support.waiting import wait_until_sync
from support.worker_process import Calls, WorkerProcess
from support.workers.pool_worker import pool_calls, pool_worker
from toolfleet_workers.pool.bootsteps import ReentrantEvents

CALLS = 30


@pytest.fixture
def calls(redis_url: str) -> Iterator[Calls]:
    yield from pool_calls(redis_url)


@contextmanager
def running(url: str, folder: Path, env: Mapping[str, str] | None = None) -> Generator[WorkerProcess]:
    """A worker for 100 calls."""
    with pool_worker(url, folder, "-c100", env=env) as worker:
        try:
            yield worker
        finally:
            worker.show()


def start(calls: Calls, number: int, task: str, *args: object) -> list[str]:
    """Calls that have started."""
    ids = [calls.send(task, *args) for _ in range(number)]
    calls.wait_for({"STARTED"}, *ids)
    return ids


def wait_until_consumption_ends(calls: Calls) -> None:
    """The worker listens to remote control until then."""
    wait_until_sync(lambda: not calls.redis.client_list(_type="pubsub"), "the worker consumes no more")


@pytest.mark.fleet
def test_a_warm_shutdown_loses_no_call(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """SIGTERM while 100 calls run: each ends well and is acked, the runner is closed, and the worker exits with 0.

    What arrives in the meantime stays in the queue, and a second SIGTERM changes nothing.
    """
    with running(redis_url, tmp_path) as worker:
        ids = start(calls, 100, "pool.sleep", 2)
        worker.send_signal(signal.SIGTERM)
        wait_until_consumption_ends(calls)
        worker.send_signal(signal.SIGTERM)
        calls.send("pool.sleep", 0)
        code = worker.wait()

        assert code == 0
        assert {calls.status(call_id) for call_id in ids} == {"SUCCESS"}
        assert (calls.queued(), calls.unacked()) == (1, 0)
        assert worker.said().count("runner closed") == 1
        assert "Traceback" not in worker.said()


@pytest.mark.fleet
def test_calls_that_outlast_the_drain_go_back_to_the_queue(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """After `drain_seconds` they are cut off, also those that swallow it; nothing is stored, and no message is lost."""
    with running(redis_url, tmp_path, {"TOOLFLEET_DRAIN_SECONDS": "0.5"}) as worker:
        short = start(calls, 5, "pool.sleep", 0.3)
        long = [*start(calls, CALLS - 1, "pool.sleep", 60), *start(calls, 1, "pool.stubborn")]
        worker.send_signal(signal.SIGTERM)

        assert worker.wait() == 0
        assert f"calls={CALLS}" in worker.said()
    assert {calls.status(call_id) for call_id in short} == {"SUCCESS"}
    assert {calls.status(call_id) for call_id in long} == {"STARTED"}
    assert (calls.queued(), calls.unacked()) == (CALLS, 0)


def test_a_cold_shutdown_puts_every_call_back(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """SIGQUIT cuts all calls off at once."""
    with running(redis_url, tmp_path) as worker:
        ids = start(calls, CALLS, "pool.sleep", 60)
        worker.send_signal(signal.SIGQUIT)
        worker.wait()

        assert "runner closed" in worker.said()
    assert {calls.status(call_id) for call_id in ids} == {"STARTED"}
    assert (calls.queued(), calls.unacked()) == (CALLS, 0)


def test_a_signal_may_interrupt_the_sending_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler says that calls are cancelled, and does not wait for what it has interrupted."""
    sent = list[Any]()
    with Celery(broker="memory://", set_as_current=False) as app, app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, buffer_group=frozenset({"task"}))

        def publish(events: Any, *args: object, **options: object) -> None:
            sent.append([event["type"] for event in events])
            if len(sent) == 1:
                dispatcher.send("task-cancelled")
                signal.raise_signal(signal.SIGUSR1)

        monkeypatch.setattr(dispatcher, "_publish", publish)
        ReentrantEvents(None).start(SimpleNamespace(event_dispatcher=dispatcher))
        before = signal.signal(signal.SIGUSR1, lambda *_: dispatcher.flush())
        try:
            dispatcher.send("task-started")
            dispatcher.flush()
        finally:
            signal.signal(signal.SIGUSR1, before)

    assert sent[1][-1] == "task-cancelled"


def test_a_signal_may_interrupt_the_code_of_a_call(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """SIGQUIT while a body blocks the loop: the handler runs in the middle of it, and that call goes back as well."""
    with running(redis_url, tmp_path) as worker:
        ids = [*start(calls, 5, "pool.sleep", 60), *start(calls, 1, "pool.block", 0.5)]
        worker.send_signal(signal.SIGQUIT)
        worker.wait()

    assert {calls.status(call_id) for call_id in ids} == {"STARTED"}
    assert (calls.queued(), calls.unacked()) == (6, 0)


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGTERM, signal.SIGQUIT),  # a supervisor loses its patience
        (signal.SIGINT, signal.SIGINT),  # a person does
    ],
)
def test_a_drain_can_be_cut_short(
    signals: tuple[signal.Signals, signal.Signals], calls: Calls, redis_url: str, tmp_path: Path
) -> None:
    """A cold shutdown that interrupts a warm one puts the calls back that still run."""
    with running(redis_url, tmp_path) as worker:
        ids = start(calls, CALLS, "pool.sleep", 60)
        worker.send_signal(signals[0])
        wait_until_consumption_ends(calls)
        worker.send_signal(signals[1])
        worker.wait()

    assert {calls.status(call_id) for call_id in ids} == {"STARTED"}
    assert (calls.queued(), calls.unacked()) == (CALLS, 0)


@pytest.mark.fleet
def test_a_drain_goes_on_without_the_broker(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """Redis cuts the worker off while it drains: the calls end, their results are stored, and the worker exits."""
    with running(redis_url, tmp_path) as worker:
        ids = start(calls, CALLS, "pool.sleep", 1.5)
        worker.send_signal(signal.SIGTERM)
        wait_until_consumption_ends(calls)
        worker.cut_connections(calls.redis)
        worker.wait()

    assert {calls.status(call_id) for call_id in ids} == {"SUCCESS"}
