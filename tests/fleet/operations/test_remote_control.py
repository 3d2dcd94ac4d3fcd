"""What a worker does for whoever sends it Celery's remote control: it answers questions, and drops the fleet's own calls."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import wait_until, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.messages.envelope import revocation

NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 30})
QUESTIONS = ("active", "active_queues", "clock", "ping", "registered", "reserved", "revoked", "scheduled", "stats")
ORDERS: dict[str, dict[str, Any]] = {
    "add_consumer": {"queue": "tools.cats"},
    "autoscale": {"max": 1, "min": 1},
    "cancel_consumer": {"queue": "tools.owls"},
    "disable_events": {},
    "dump_conf": {},
    "election": {"id": "1", "topic": "task"},
    "hello": {"from_node": "mallory", "revoked": {"call-1": 1}},
    "memdump": {},
    "memsample": {},
    "objgraph": {},
    "pool_grow": {"n": 1},
    "pool_restart": {},
    "pool_shrink": {"n": 1},
    "rate_limit": {"task_name": "toolfleet.execute", "rate_limit": "1/h"},
    "report": {},
    "revoke_by_stamped_headers": {"headers": {"a": "b"}},
    "shutdown": {},
    "terminate": {"signal": "SIGTERM", "task_id": "call-1"},
    "time_limit": {"task_name": "toolfleet.execute", "hard": 1},
}

MALFORMED: list[dict[str, Any]] = [
    {"method": "ping", "destination": 5},
    {"arguments": {}},
    {"method": "ping", "pattern": "[", "matcher": "pcre"},
    {"method": "ping", "pattern": "a", "matcher": "none"},
]


@pytest.fixture(scope="module")
def app(signed: TestBed, signed_worker: WorkerProcess) -> Iterator[FleetApp]:
    """Somebody who reaches the broker: without the key, which Celery's own commands would not use, either."""
    app = make_app(signed.settings.model_copy(update={"signing_key": None}), stores_results=False)
    yield app
    app.close()


def order(app: FleetApp, command: str, **arguments: Any) -> Any:
    """The one worker's answer."""
    (answer,) = app.control.broadcast(command, arguments=arguments, reply=True, limit=1)
    return next(iter(answer.values()))


@pytest.mark.parametrize("command", QUESTIONS)
def test_questions_are_answered(app: FleetApp, command: str) -> None:
    """As `celery inspect` and Flower ask them."""
    assert "error" not in order(app, command)


def test_flower_leaves_no_errors_in_the_log(app: FleetApp, signed_worker: WorkerProcess) -> None:
    """Events and heartbeats are sent anyway; the settings, which Flower asks for as well, are refused without a line."""
    before = signed_worker.said().count("remote_control_refused")

    assert "ok" in order(app, "enable_events")
    assert order(app, "heartbeat") is None
    assert "TOOLFLEET_REMOTE_CONTROL" in order(app, "conf")["error"]
    assert signed_worker.said().count("remote_control_refused") == before


def test_whatever_else_is_refused_and_told(app: FleetApp, signed_worker: WorkerProcess) -> None:
    """The worker goes on as before, and its log counts."""
    before = order(app, "active_queues")
    for command, arguments in ORDERS.items():
        assert "TOOLFLEET_REMOTE_CONTROL" in order(app, command, **arguments)["error"], command
    said = signed_worker.said()

    assert said.count("remote_control_refused") == len(ORDERS)
    assert f"so_far={len(ORDERS)}" in said or f'"so_far": {len(ORDERS)}' in said
    assert order(app, "active_queues") == before
    assert order(app, "revoked") == []


def test_malformed_orders_are_refused(app: FleetApp, signed_worker: WorkerProcess) -> None:
    """Celery would have remote control begin again for each."""
    exchange = app.control.mailbox.exchange
    with app.connection_for_write() as connection, connection.Producer(serializer="json") as producer:
        for malformed in MALFORMED:
            producer.publish(malformed, exchange=exchange.name, declare=[exchange], routing_key="")
    wait_until_sync(lambda: signed_worker.said().count("it is malformed") == len(MALFORMED), "they are refused")

    assert "Control command error" not in signed_worker.said()
    assert "error" not in order(app, "ping")


async def test_only_the_fleet_may_revoke(app: FleetApp, signed: TestBed, owls: ModuleServer, owner: Caller) -> None:
    """What nobody has signed, or is another call's, leaves a call alone; its agent's own word interrupts it."""
    owls.forget()
    async with ToolFleet(settings=signed.settings) as agent:
        handle = await agent.submit(NAP, owner)
        await wait_until(lambda: owls.call_ids("nap") == [handle.id], "the module has the call")
        another = revocation(["call-1"], signed.settings)
        tries: list[dict[str, Any]] = [
            {"task_id": handle.id, "terminate": True, "signal": "SIGKILL"},  # what Flower's button sends
            {**another, "task_id": [handle.id]},
            {**revocation([handle.id], signed.settings), "signal": "SIGKILL"},
            {**revocation([handle.id], signed.settings), "signature": 7},
        ]
        for arguments in tries:
            answer = await asyncio.to_thread(order, app, "revoke", **arguments)
            assert "not signed by the fleet" in answer["error"]
        assert (owls.running, await handle.status()) == (1, "running")
        await handle.cancel()
        await wait_until(lambda: owls.running == 0, "it was interrupted")

        assert (await handle.result()).error_code == "cancelled"


def test_a_setting_allows_more(signed: TestBed, tmp_path_factory: pytest.TempPathFactory) -> None:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        bed = TestBed(url, signed.modules, signed.folder, {**signed.more, "remote_control": frozenset({"shutdown"})})
        with bed.worker() as worker:
            app = make_app(bed.settings, stores_results=False)
            try:
                app.control.broadcast("pool_shrink", arguments={"n": 1})
                app.control.broadcast("shutdown")
            finally:
                app.close()
            assert worker.wait() == 0
            assert "remote_control_refused" in worker.said()
