"""A fetched call is run without a request of Celery's, whose tools see no difference of it."""

import base64
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.worker import control, state, strategy
from kombu.message import Message

from toolfleet_registry.settings import Settings
from toolfleet_tasks import call_task, worker_runtime
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.control.celery_worker import CallFront, FetchedCall, call_strategy
from toolfleet_tasks.messages.envelope import DIED, TASK
from toolfleet_tasks.worker_runtime import take_none

ALONE = b'[["text"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


class Events:
    """Stands for the dispatcher, whose events `tests/fleet/operations/test_flower.py` hears for real."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append({"type": type, **fields})

    def tell(self, *described: Callable[[], dict[str, Any]]) -> None:
        for describe in described:
            self.send(**describe())


class Job:
    """What a pool returns; Celery keeps a weak reference to it, to terminate it."""

    signal: Any = None

    def terminate(self, signal: Any) -> None:
        self.signal = signal


class Pool:
    """Notes what it is to run."""

    def __init__(self) -> None:
        self.calls: list[FetchedCall] = []
        self.is_running = True
        self.job = Job()

    def run_call(self, call: FetchedCall) -> bool:
        if self.is_running:
            self.calls.append(call)
            call.run = lambda: self.job
        return self.is_running

    def apply_async(self, *_: object, **__: object) -> Job:
        return self.job

    def terminate_job(self, *_: object) -> None:
        """There is one process for all."""


class Intake:
    """Notes what becomes of messages."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, str]] = []

    def acknowledge(self, message: Any) -> None:
        self.settled.append(("acked", message.delivery_tag))

    def reject(self, message: Any, *, requeue: bool) -> None:
        self.settled.append(("requeued" if requeue else "set aside", message.delivery_tag))


class Front:
    """Celery's consumer, as far as a front knows it, and what it takes."""

    def __init__(self, app: FleetApp) -> None:
        self.pool, self.events, self.intake = Pool(), Events(), Intake()
        worker_runtime.here().intake = self.intake
        self.buckets = defaultdict[str, Any](lambda: None)
        self.consumer = SimpleNamespace(
            pool=self.pool,
            event_dispatcher=self.events,
            hostname="w0@here",
            connection_errors=(),
            on_task_message=set[Any](),
            task_buckets=self.buckets,
            timer=SimpleNamespace(call_at=None),
            apply_eta_task=None,
            disable_rate_limits=True,
            on_task_request=lambda _: None,
            _limit_task=None,
            _limit_post_eta=None,
            controller=SimpleNamespace(state=state),
        )
        self._front = CallFront(app.tasks[TASK], app, self.consumer, worker_runtime.here())

    def message(self, body: bytes = ALONE, **headers: Any) -> dict[str, Any]:
        plain = {"id": "call", "task": TASK, "argsrepr": "(a=…)", "kwargsrepr": "{}", "root_id": "call", "retries": 1}
        info = {"exchange": "", "routing_key": "tools.owls"}
        return {
            "headers": plain | headers,
            "body": base64.b64encode(body).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "properties": {"delivery_tag": "tag", "body_encoding": "base64", "delivery_info": info},
        }

    def takes(self, message: dict[str, Any]) -> bool:
        before = json.dumps(message)
        is_taken = self._front.take(message)
        assert is_taken == bool(self.pool.calls) == ("call" in state.requests)
        assert is_taken or json.dumps(message) == before, "Celery gets it as it came"
        return is_taken

    def taken(self) -> FetchedCall:
        assert self.takes(self.message())
        return self.pool.calls[0]


@pytest.fixture
async def front(lined_app: FleetApp) -> AsyncIterator[Front]:
    yield Front(lined_app)
    state.reset_state()


async def test_a_plain_call_is_handed_to_the_pool(front: Front) -> None:
    """It has Celery's names for what the message says, and `None` for what it does not say."""
    headers: dict[str, Any] = {DIED: "ab", "shadow": "owls.echo"}
    assert front.takes(front.message(**headers))
    call: Any = front.pool.calls[0]

    assert (call.id, call.body, call.args, call.hostname) == ("call", "text", ["text"], "w0@here")
    assert (call.retries, call.shadow, call.chain, getattr(call, DIED)) == (1, "owls.echo", None, "ab")
    assert (call.is_stored, call.is_parked, call.acknowledged) == (False, False, False)


async def test_any_senders_header_may_be_counted(front: Front) -> None:
    """Nothing fails once the pool runs the call."""
    assert front.takes(front.message(shadow=["owls"]))
    assert state.total_count["['owls']"] == 1


LINKED = ALONE.replace(b'"chain": null', b'"chain": [{}]')


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (ALONE, {"eta": "2030-01-01T00:00:00+00:00"}),  # it begins later
        (ALONE, {"expires": "2030-01-01T00:00:00+00:00"}),
        (ALONE, {"stamped_headers": ["run"], "stamps": {"run": "r"}}),  # it may be revoked by its stamp
        (ALONE, {"id": "revoked"}),
        (ALONE, {"task": "toolfleet.resume_jobs"}),
        (ALONE, {"group": "group-1"}),
        (ALONE, {"chain": [{"task": "toolfleet.execute"}]}),
        (ALONE, {"errbacks": []}),
        (ALONE, {"retries": None}),
        (ALONE, {"compression": "application/x-gzip"}),
        (LINKED, {}),
        (b"[[", {}),
        (ALONE.replace(b'["text"]', b'["text", "more"]'), {}),
        (ALONE.replace(b'["text"]', b"[]"), {}),
        (ALONE.replace(b'["text"]', b"[5]"), {}),
        (ALONE.replace(b'["text"]', b"5"), {}),
        (ALONE.replace(b'["text"]', b'"a", ["text"]'), {}),
        (ALONE.replace(b'["text"]', b'{"message": "text"}'), {}),
    ],
)
async def test_what_celery_has_something_to_do_for_goes_its_own_way(
    front: Front, body: bytes, headers: dict[str, Any]
) -> None:
    """It begins later, may have been revoked, is a link of a canvas, or is not written as ours; nothing of it was taken."""
    state.revoked.add("revoked")

    assert not front.takes(front.message(body, **headers))


@pytest.mark.parametrize("fault", [{"content-type": "text/plain"}, {"content-encoding": "utf-16"}, {"body": "?"}])
async def test_another_encoding_is_celerys_to_read(front: Front, fault: dict[str, str]) -> None:
    assert not front.takes(front.message() | fault)


@pytest.mark.parametrize("name", ["task_received", "task_prerun", "task_postrun", "task_success"])
async def test_listeners_of_celerys_signals_hear_of_every_call(front: Front, name: str) -> None:
    """A message goes Celery's own way while somebody listens."""

    def listen(**_: object) -> None:
        """Stands for an instrumentation."""

    signal = getattr(signals, name)
    signal.connect(listen)
    try:
        assert not front.takes(front.message())
    finally:
        signal.disconnect(listen)
    assert front.takes(front.message())


async def test_a_limited_rate_and_a_pool_that_ends_are_celerys_to_keep(front: Front) -> None:
    """Also a limit that was set by remote control while the worker runs."""
    front.buckets[TASK] = object()
    assert not front.takes(front.message())
    front.buckets[TASK] = None
    front.pool.is_running = False
    assert not front.takes(front.message())


async def test_calls_from_rabbitmq_are_celerys(front: Front, lined_app: FleetApp) -> None:
    """Its tracer stores what the ledger has not."""
    here = worker_runtime.here()
    call_strategy(lined_app.tasks[TASK], lined_app, front.consumer)
    assert here.take is take_none, "the tracer is not set up for it"
    lined_app.use_fast_trace_task = True
    call_strategy(lined_app.tasks[TASK], lined_app, front.consumer)
    assert here.take is not take_none
    rabbit = make_app(Settings(redis_url="redis://127.0.0.1:1/0", broker_url="amqp://127.0.0.1:1//"))
    rabbit.use_fast_trace_task = True
    call_strategy(rabbit.tasks[TASK], rabbit, front.consumer)
    assert here.take is take_none


async def test_inspect_finds_it(front: Front) -> None:
    """It is active until it has ended, and counts among the worker's calls."""
    call = front.taken()
    panel = SimpleNamespace(tset=set)

    (shown,) = control.active(panel)
    assert (shown["id"], shown["args"], shown["delivery_info"]["routing_key"]) == ("call", "(a=…)", "tools.owls")
    assert shown["time_start"] == call.time_start
    assert shown["kwargs"].startswith("lane=")
    assert control.query_task(panel, "call")["call"][0] == "active"
    assert control.reserved(panel) == []
    assert (len(state.active_requests), len(state.reserved_requests), state.total_count[TASK]) == (1, 1, 1)

    call.succeed("done", 0.1)
    call.leave()
    assert control.active(panel) == []
    assert control.query_task(panel, "call") == {}
    assert (len(state.reserved_requests), state.total_count[TASK]) == (0, 1)


async def test_what_celery_asks_of_running_requests_is_answered(front: Front) -> None:
    """By its control commands, its autoscaler, and its consumer as it loses a connection or is shut down cold."""
    call: Any = front.taken()

    for each in state.active_requests:
        assert each is call
        assert (each.task.acks_late, each.acknowledged, bool(each.stamps)) == (True, False, False)
        assert each.message.delivery_tag == "tag"
        each.eventer = front.events
    state.reserved_requests.clear()
    state.reserved_requests.update(tuple(state.active_requests))
    call.leave()
    assert (len(state.active_requests), len(state.reserved_requests)) == (0, 0)


async def test_it_is_terminated_as_celery_does(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is stored and told of, its message is acknowledged once, and its job is stopped."""
    call = front.taken()
    monkeypatch.setattr(call.task.backend, "mark_as_revoked", lambda *_, **__: None)
    front.events.sent.clear()

    call.terminate(front.pool, "SIGTERM")
    call.acknowledge()

    assert front.intake.settled == [("acked", "tag")]
    assert front.pool.job.signal == 15
    assert [event["type"] for event in front.events.sent] == ["task-revoked", "task-failed"]


@pytest.mark.parametrize("ends", [(0, 1), (1, 0), (2, 0), (0, 2)])
async def test_of_several_messages_of_a_call_the_one_that_is_left_is_found(front: Front, ends: tuple[int, int]) -> None:
    """Any of them may be the one that runs: the others leave before it, in any order, and `revoke` still finds it."""
    for _ in range(3):
        assert front.takes(front.message())
    for number in ends:
        front.pool.calls[number].leave()

    (left,) = {0, 1, 2} - {*ends}
    assert state.requests["call"] is front.pool.calls[left]
    front.pool.calls[left].leave()
    assert "call" not in state.requests


async def test_a_cold_shutdown_leaves_its_message_to_others(front: Front) -> None:
    call = front.taken()

    call.cancel(front.pool, emit_retry=False)

    assert (front.intake.settled, front.pool.job.signal) == ([], 15)


@pytest.mark.parametrize("requeue", [True, False])
async def test_celery_may_refuse_it(front: Front, *, requeue: bool) -> None:
    call = front.taken()
    call.celery.reject(requeue=requeue)

    assert front.intake.settled == [("requeued" if requeue else "set aside", "tag")]


async def test_events_are_those_of_celerys_own_way(front: Front, lined_app: FleetApp) -> None:
    """A call that was received is told of in the same words by both; it starts at once."""
    call = front.taken()
    short = front.events.sent.copy()
    front.events.sent.clear()
    received = Message(
        headers=front.message()["headers"],
        body=ALONE,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"routing_key": "tools.owls"},
    )
    strategy.default(lined_app.tasks[TASK], lined_app, front.consumer)(received, None, None, None, ())
    assert short == [*front.events.sent, {"type": "task-started", "uuid": "call"}]
    assert short[0]["type"] == "task-received"
    front.events.sent.clear()

    call.succeed("done", 0.5)
    assert front.events.sent == [{"type": "task-succeeded", "uuid": "call", "result": "done", "runtime": 0.5}]
    assert front.intake.settled == [("acked", "tag")]


@pytest.mark.parametrize("header", ["done", 5, None])
async def test_no_message_says_how_its_call_has_ended(
    lined_app: FleetApp, header: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery shows a message's headers beside what we put into the request; the call is run for all that."""
    monkeypatch.setattr(call_task, "_bridged", lambda *_: "run")
    task = lined_app.tasks[TASK]
    task.push_request(**{call_task.END: header})
    try:
        assert task.run("text") == "run"
    finally:
        task.pop_request()
