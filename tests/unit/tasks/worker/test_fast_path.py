"""Which calls run without Celery's tracer, and what their task says of its request."""

from typing import Any

import pytest
from celery import signals
from celery.app.trace import fast_trace_task, trace_task_ret

from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.greenlet_bridge import Bridge
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.worker import call_task
from toolfleet_tasks.worker.call_task import untraced

BY_ITSELF = b'[["text"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
LINKED = b'[["text"], {}, {"callbacks": null, "errbacks": null, "chain": [{}], "chord": null}]'


def taken(app: FleetApp, *, target: Any = fast_trace_task, task: str = TASK, body: Any = BY_ITSELF, **said: Any) -> Any:
    """What a call comes to that Celery wants run by `target`."""
    request = {"id": "call-1", "args": ["text"], "kwargs": {}, "hostname": "here", "retries": 0, "group": None, **said}
    args = (task, "call-1", request, body, "application/json", "utf-8")
    return untraced(app, target, args, Bridge())


async def test_a_call_by_itself_needs_no_tracer(lined_app: FleetApp) -> None:
    """Its task has Celery's names for what the message says, and `None` for what it does not say."""
    task = taken(lined_app)

    assert (task.app, task.request.id, task.request.hostname) == (lined_app, "call-1", "here")
    assert (task.request.shadow, task.request.chain, task.request.is_stored) == (None, None, False)
    assert (task.is_followed, task.links) == (False, None)


@pytest.mark.parametrize(
    "otherwise",
    [
        {"target": trace_task_ret},
        {"task": "toolfleet.resume_jobs"},
        {"body": LINKED},
        {"body": BY_ITSELF.decode()},
        {"group": "group-1"},
        {"args": ["text", "more"]},
        {"args": []},
        {"args": 5},
        {"args": None},
        {"args": {"message": "text"}},
        {"chain": [{"task": "toolfleet.execute"}]},
        {"errbacks": []},
        {"retries": None},
    ],
    ids="-".join,
)
async def test_everything_else_is_for_the_tracer(lined_app: FleetApp, otherwise: dict[str, Any]) -> None:
    """Links of a canvas, other tasks, other targets, and messages that are not written as ours."""
    assert taken(lined_app, **otherwise) is None


@pytest.mark.parametrize("name", ["task_prerun", "task_postrun", "task_success"])
async def test_where_somebody_listens_the_tracer_runs(lined_app: FleetApp, name: str) -> None:
    """Whoever instruments Celery sees the fleet's calls as he does all tasks."""

    def listener(**_: Any) -> None:
        """Stands for an instrumentation."""

    signal = getattr(signals, name)
    signal.connect(listener)
    try:
        assert taken(lined_app) is None
    finally:
        signal.disconnect(listener)
    assert taken(lined_app) is not None


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


async def test_calls_from_rabbitmq_need_the_tracer(lined_app: FleetApp) -> None:
    """It stores what the ledger has not, and so it does under a pool without lines."""
    rabbit = make_app(Settings(redis_url="redis://127.0.0.1:1/0", broker_url="amqp://127.0.0.1:1//"))
    assert taken(rabbit) is None

    await worker_runtime.stop()
    assert taken(lined_app) is None
