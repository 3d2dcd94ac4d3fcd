"""A call's message comes to the pool by a shorter way than Celery's, which Celery's tools see no difference of."""

import json
from collections import defaultdict
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.worker import state, strategy
from kombu.message import Message

from toolfleet_tasks.app import FleetApp
from toolfleet_tasks.control.celery_worker import CallStrategy
from toolfleet_tasks.messages.envelope import TASK

BODY = json.dumps([["text"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()


class Events:
    """Stands for the dispatcher, whose events `tests/fleet/operations/test_flower.py` hears for real."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append({"type": type, **fields})

    def tell(self, describe: Callable[[], dict[str, Any]]) -> None:
        self.send(**describe())


class Job:
    """What a pool returns; Celery keeps a weak reference to it."""


class Pool:
    """Notes whom it is to run."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.job = Job()

    def run_request(self, target: object, request: Any) -> Job:
        del target
        self.requests.append(request)
        return self.job

    def apply_async(self, *_: object, **__: object) -> Job:
        return self.job


class Acks:
    """Counts what a message's channel is told."""

    no_ack_consumers = None

    def __init__(self) -> None:
        self.acked: list[str] = []

    def basic_ack(self, tag: str, *, multiple: bool) -> None:
        assert not multiple
        self.acked.append(tag)


class Front:
    """Celery's consumer, as far as a strategy knows it, and what it takes."""

    def __init__(self, app: FleetApp) -> None:
        self.pool, self.events, self.channel = Pool(), Events(), Acks()
        self.others: list[Any] = []
        self.buckets = defaultdict[str, Any](lambda: None)
        self.consumer = SimpleNamespace(
            pool=self.pool,
            event_dispatcher=self.events,
            hostname="w0@here",
            connection_errors=(),
            restart_count=0,
            on_task_message=set[Any](),
            task_buckets=self.buckets,
        )
        self.strategy = CallStrategy(app.tasks[TASK], app, self.consumer, lambda *message: self.others.append(message))

    def message(self, **headers: Any) -> Message:
        plain = {"id": "call", "task": TASK, "argsrepr": "(a=…)", "kwargsrepr": "{}", "root_id": "call", "retries": 1}
        return Message(
            headers=plain | headers,
            body=BODY,
            content_type="application/json",
            content_encoding="utf-8",
            delivery_tag="tag",
            delivery_info={"routing_key": "tools.owls"},
            channel=self.channel,
        )


@pytest.fixture
def front(lined_app: FleetApp) -> Generator[Front]:
    yield Front(lined_app)
    state.reset_state()


def test_a_plain_call_is_handed_to_the_pool(front: Front) -> None:
    """Celery's inspect finds it, and what Celery makes for an ack is not needed."""
    assert front.strategy.receive(front.message())

    assert [request.id for request in front.pool.requests] == ["call"]
    assert state.requests["call"] in state.reserved_requests


@pytest.mark.parametrize(
    "headers",
    [
        {"eta": "2030-01-01T00:00:00+00:00"},  # it begins later
        {"expires": "2030-01-01T00:00:00+00:00"},
        {"stamped_headers": ["run"], "stamps": {"run": "r"}},  # it may be revoked by its stamp
        {"id": "revoked"},
    ],
)
def test_what_celery_has_something_to_do_for_goes_its_own_way(front: Front, headers: dict[str, Any]) -> None:
    """It begins later, expires, or may have been revoked."""
    state.revoked.add("revoked")

    message = front.message(**headers)
    assert not front.strategy.receive(message)
    front.strategy(message, None, None, None, ())

    assert [taken for taken, *_ in front.others] == [message]
    assert not front.pool.requests


def test_a_limited_rate_is_celerys_to_keep(front: Front) -> None:
    """Also one that was set by remote control while the worker runs."""
    front.buckets[TASK] = object()

    assert not front.strategy.receive(front.message())


def test_listeners_of_celerys_signal_hear_of_every_call(front: Front) -> None:
    """A message goes Celery's own way while somebody listens."""

    def listen(**_: object) -> None:
        """Nobody calls it here."""

    signals.task_received.connect(listen)
    try:
        assert not front.strategy.receive(front.message())
    finally:
        signals.task_received.disconnect(listen)


def test_a_body_that_cannot_be_read_is_celerys_to_refuse(front: Front) -> None:
    """Nothing of it was taken."""
    message = front.message()
    message.body = b"[["

    assert not front.strategy.receive(message)
    assert not state.requests


def test_after_a_restart_celery_counts_the_acks(front: Front) -> None:
    """The short way takes what Celery has made for an ack, which counts how many messages it may have."""
    front.consumer.restart_count = 1
    acks: list[object] = []

    message = front.message()
    assert not front.strategy.receive(message)
    front.strategy(message, None, lambda *_: acks.append("ack"), None, ())
    front.pool.requests[0].on_success((0, "'done'", 0.1))

    assert acks == ["ack"]
    assert front.channel.acked == []


def test_a_call_is_acked_and_forgotten_as_it_ends(front: Front) -> None:
    """Once; it counts among the worker's calls, as with Celery's own request."""
    front.strategy.receive(front.message())
    request = front.pool.requests[0]
    request.on_accepted(1, 0.0)
    assert request in state.active_requests

    request.on_success((0, "'done'", 0.1))
    request.acknowledge()

    assert front.channel.acked == ["tag"]
    assert not state.requests
    assert not state.active_requests
    assert state.total_count[TASK] == 1


def test_events_are_those_of_celerys_own_way(front: Front, lined_app: FleetApp) -> None:
    """A call that was received is told of in the same words by both."""
    front.strategy.receive(front.message())
    short = front.events.sent.copy()
    front.events.sent.clear()
    celerys = SimpleNamespace(
        **vars(front.consumer),
        timer=SimpleNamespace(call_at=None),
        apply_eta_task=None,
        disable_rate_limits=True,
        on_task_request=lambda _: None,
        _limit_task=None,
        _limit_post_eta=None,
        controller=SimpleNamespace(state=state),
    )
    strategy.default(lined_app.tasks[TASK], lined_app, celerys)(front.message(), None, None, None, ())

    assert short == front.events.sent
    assert [event["type"] for event in short] == ["task-received"]
