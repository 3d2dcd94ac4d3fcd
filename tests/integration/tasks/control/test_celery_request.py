"""What Celery's tools get to see of a call's end is a word."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.worker.state import revoked
from kombu.message import Message

from support.clocks import fleet_clock_ahead
from support.published_call import published
from support.servers.redis_faults import faulty_redis
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.control.celery_worker import FleetRequest, HousekeepingRequest, word_in
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.messages.ids import RESUME

DONE = ToolResult.ok("owls.echo", {"success": False, "error_code": "busy"})
FAILED = ToolResult.failed("owls.echo", "module_error", '"success":true', effect_state="unknown")
NESTED = FAILED.model_copy(update={"result": {"error_code": "secret"}})


@pytest.mark.parametrize(
    ("shown", "word"),
    [
        ("'done'", "done"),  # as Celery shows a text
        ("'timed_out'", "timed_out"),
        (f"'{json_text.dump(DONE)}'", "done"),  # a result, as with RabbitMQ
        (f"'{json_text.dump(FAILED)}'", "module_error"),
        (f"'{json_text.dump(FAILED)[:60]}...'", "failed"),  # cut off before the code
        (f"'{json_text.dump(NESTED)}'", "module_error"),  # no module gets a word of its own in
        (f"'{json_text.dump(NESTED)[:120]}'", "failed"),
        ("None", "done"),
    ],
)
def test_a_result_is_shown_as_a_word(shown: str, word: str) -> None:
    """Its error code, or that it is done; nothing that the module has said."""
    assert word_in(shown) == word


class Eventer:
    """Stands for the dispatcher, whose events `tests/fleet/operations/test_flower.py` hears for real."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append({"type": type, **fields})


Make = Callable[..., tuple[FleetRequest, Eventer]]


@pytest.fixture
def make(lined_app: FleetApp) -> Make:
    """A request of a call's message with these headers, and what it tells."""

    def make(text: str = "", kind: type[Any] = FleetRequest, task: str = TASK, **more: Any) -> Any:
        eventer = Eventer()
        headers = {"id": "c", "task": task, "argsrepr": "()", "kwargsrepr": "{}", **more}
        info = {"routing_key": "tools.deployer"}
        message = Message(headers=headers, body="[[],{},{}]", content_type="application/json", delivery_info=info)
        named: dict[str, Any] = {"app": lined_app, "task": lined_app.tasks[task], "eventer": eventer}
        return kind(message, **named, decoded=True, headers=headers, body=([text], {}, {})), eventer

    return make


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery
def test_a_revocation_that_a_full_redis_cannot_note_ends_no_worker(tmp_path: Path) -> None:
    """Of a call that waits, its body asks the ledger; one that runs is interrupted. With room again it is as ever."""
    with faulty_redis(tmp_path) as redis:
        app = make_app(Settings(redis_url=redis.url))
        waiting, running, later = (_request(app, call_id) for call_id in ("w", "r", "l"))
        revoked.update(("w", "l"))
        with redis.full():
            assert not waiting.revoked()
            running._announce_revoked("terminated", True, 15, False)
        assert later.revoked()
        app.close()


def _request(app: FleetApp, call_id: str) -> FleetRequest:
    headers = {"id": call_id, "task": TASK, "argsrepr": "()", "kwargsrepr": "{}"}
    info = {"routing_key": "tools.deployer"}
    message = Message(headers=headers, body="[[],{},{}]", content_type="application/json", delivery_info=info)
    named: dict[str, Any] = {"app": app, "task": app.tasks[TASK], "on_ack": lambda *_: None}
    return FleetRequest(message, **named, decoded=True, headers=headers, body=([""], {}, {}))


@pytest.mark.parametrize("word", ["timed_out", "failed"])
def test_a_call_that_did_not_succeed_has_failed(make: Make, word: str) -> None:
    """Its error code is the exception's text; its task has succeeded, and has stored its result."""
    request, eventer = make()
    request.send_event("task-succeeded", result=f"'{word}'", runtime=1.5)

    assert eventer.sent == [
        {"type": "task-failed", "uuid": "c", "exception": word, "traceback": None, "runtime": 1.5},
    ]


@pytest.mark.parametrize(
    ("exception", "traceback", "shown"),
    [
        ("LinkFailed('…')", "…LinkFailed: The call before it has not succeeded: busy.\n", "busy"),
        ("TimeLimitExceeded(40)", "…TimeLimitExceeded: 40", "timed_out"),
        ("KeyError('pin')", "…KeyError: 'pin'", "KeyError"),  # a defect: no result has a code for it yet
    ],
)
def test_an_exception_is_shown_as_a_code(make: Make, exception: str, traceback: str, shown: str) -> None:
    """That of the result which its caller gets; of a defect of ours only the class."""
    request, eventer = make()
    request.send_event("task-failed", exception=exception, traceback=traceback)

    assert [(event["exception"], event["traceback"]) for event in eventer.sent] == [(shown, None)]


@pytest.mark.parametrize(
    ("left", "retries", "began", "code"),
    [
        (60, 0, True, "cancelled"),
        (60, 0, False, "cancelled"),
        (-1, 0, True, "timed_out"),
        (-1, 1, False, "timed_out"),  # it waited for its second attempt
        (-1, 0, False, "expired"),
        (None, 0, False, "cancelled"),  # what lies there is nobody's call
    ],
)
def test_a_revoked_call_has_failed(make: Make, left: float | None, retries: int, code: str, *, began: bool) -> None:
    """Its agent revokes it when nobody wants it any more, and at its deadline; Flower counts by both events."""
    now = fleet_clock.now()
    call = published("owls.echo", call_id="c", published_at=now, deadline_at=now + (left or 0))
    request, eventer = make("?" if left is None else json_text.dump(call), retries=retries)
    request.time_start = now if began else None
    request.send_event("task-revoked", terminated=began, signum=None, expired=False)

    assert [event["type"] for event in eventer.sent] == ["task-revoked", "task-failed"]
    assert eventer.sent[1]["exception"] == code


def test_lane_and_limits_are_shown(make: Make, lined_app: FleetApp) -> None:
    """In place of keyword arguments, which a call's task has none of; for Flower's page and for `inspect`. The lane may be the directory's."""
    request, _ = make(timelimit=[130.5, 121.0])
    lined_app.modules.settings = lined_app.settings.model_copy(update={"slow_modules": frozenset({"deployer"})})
    forged, _ = make(timelimit=["<b>", None])

    assert request.kwargsrepr == request.info()["kwargs"] == "lane=slow, soft_limit=121s, hard_limit=130.5s"
    assert forged.kwargsrepr == "lane=slow, soft_limit=none, hard_limit=none"


def test_own_ticks_tell_of_failures_only(make: Make) -> None:
    """With what listeners would know from the events before it."""
    request, eventer = make(kind=HousekeepingRequest, task=RESUME)
    for kind in ("task-received", "task-started", "task-succeeded", "task-revoked", "task-rejected"):
        request.send_event(kind, result="None", runtime=0.1)
    request.send_event("task-failed", exception="ResponseError('secret')", traceback="secret")

    assert not request.task.send_events  # Celery tells of its arrival by itself
    assert eventer.sent == [
        {"type": "task-failed", "uuid": "c", "name": RESUME, "args": "()", "kwargs": "{}", "exception": "ResponseError"}
        | {"traceback": None}
    ]


@pytest.mark.parametrize("seconds", [30.0, -30.0])
def test_a_worker_that_is_off_tries_again_in_time(lined_app: FleetApp, seconds: float) -> None:
    """A retry's time is the fleet's, and Celery's timer goes by the machine's clock."""
    with fleet_clock_ahead(-seconds):
        due = fleet_clock.utc_now() + timedelta(seconds=10)
        task = lined_app.tasks[TASK]
        headers = {"id": "c", "task": TASK, "eta": due.isoformat(), "argsrepr": "()", "kwargsrepr": "{}"}
        message = Message(headers=headers, body="[[],{},{}]", content_type="application/json")
        request = FleetRequest(message, app=lined_app, task=task, decoded=True, headers=headers, body=([], {}, {}))

        assert request.eta is not None
        assert request.eta - datetime.now(UTC) == pytest.approx(timedelta(seconds=10), abs=timedelta(seconds=2))
