"""The Redis transport with real workers: leases, faults, remote control, and what must not arrive twice or get lost."""

import base64
import contextlib
import json
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from redis.exceptions import RedisError

from support.fleet import TestBed, program
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, holding, serve
from support.servers.plain_http import PLAIN
from support.streams.tcp_proxy import tcp_proxy
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import READY, WorkerProcess
from toolfleet_cli.local.environment import worker_command
from toolfleet_cli.local.redis_server import held_port, redis_server
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import Keys

_SOON = {
    "toolfleet_tasks.redis_connection._BEAT_SECONDS": 1,
    "toolfleet_tasks.redis_connection._HALF_OPEN_SECONDS": 3,
    "toolfleet_tasks.redis_connection._CONNECT_SECONDS": 2,
}
"""A connection that passes nothing on is noticed sooner, and so is one that does not come about."""
_STALL = "toolfleet_workers.pool.bootsteps._STALL_SECONDS"
KEYS = Keys()


@pytest.fixture
def bed(owls: ModuleServer, redis_url: str, tmp_path: Path) -> TestBed:
    logs = tmp_path / "logs"
    logs.mkdir()
    owls.forget()
    return TestBed(redis_url, (owls,), logs)


@pytest.fixture
def calls(bed: TestBed, owls: ModuleServer) -> Iterator[FleetCalls]:
    calls = FleetCalls(bed.settings)
    offer(calls.redis, "owls", *owls.definitions)
    yield calls
    calls.close()


@contextlib.contextmanager
def own_redis(owls: ModuleServer, folder: Path) -> Generator[tuple[TestBed, FleetCalls]]:
    """A Redis that will be frozen or ended; where it is, a bed on it, and calls."""
    (folder / "logs").mkdir()
    owls.forget()
    with held_port() as port, redis_server(folder / "redis", port=port) as url:
        bed = TestBed(url, (owls,), folder / "logs")
        calls = FleetCalls(bed.settings)
        offer(calls.redis, "owls", *owls.definitions)
        try:
            yield bed, calls
        finally:
            calls.close()


def offer(redis: Redis, module: str, *tools: dict[str, Any]) -> None:
    """A manifest that is known before a worker starts: calls need not wait until somebody has asked the module."""
    manifest = {"module_name": module, "description": "", "tools": tools}
    redis.set(Keys().module_manifest(module), json.dumps(manifest), ex=3600)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def pid_of(redis: Redis) -> int:
    return int(redis.info("server")["process_id"])


def numbers(owls: ModuleServer, method: str = "nap") -> list[int]:
    """Which calls have reached the module, by their number."""
    return sorted(request["arguments"]["n"] for request in owls.calls(method))


def nothing_is_left(calls: FleetCalls) -> None:
    wait_until_sync(lambda: not calls.unacked() and not calls.queued(), "everything was acked")


@pytest.mark.slow
def test_a_lease_limits_no_call(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """Longer than two leases, as a running call or as one that is held until its time: it runs once, though others idle."""
    with bed.worker(visibility_timeout=2), bed.worker(visibility_timeout=2) as other:
        ids = [calls.call("nap", n=1, seconds=4.5), calls.call("nap", n=2, seconds=0, countdown=4.5)]

        assert calls.succeeded(*ids) == [True, True]
        nothing_is_left(calls)
        assert "leases_lost" not in other.said()
    assert numbers(owls) == [1, 2]


def test_a_killed_workers_calls_run_elsewhere(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """After kill -9 an idle worker gets what ran and what was held for later, within about a lease."""
    with bed.worker(visibility_timeout=2) as killed, holding(owls, "nap"):
        ids = [calls.call("nap", n=n, seconds=0) for n in range(5)]
        ids.append(calls.call("nap", n=5, seconds=0, countdown=4))
        wait_until_sync(lambda: owls.running == 5 and calls.unacked() == 6, "the module has the calls")
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    with bed.worker(visibility_timeout=2) as other:
        wait_until_sync(lambda: len(owls.calls("nap")) >= 10, "the calls run elsewhere")

        assert calls.succeeded(*ids) == [True] * 6
        nothing_is_left(calls)
        assert "expired_leases_restored" in other.said()
    assert numbers(owls) == sorted([0, 1, 2, 3, 4] * 2 + [5])


def test_workers_share_a_backlog(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """A hundred calls that wait: none of two workers takes more than it has slots for, and both work."""
    with bed.worker(worker_concurrency=20) as one, bed.worker(worker_concurrency=20) as two:
        ids = [calls.call("nap", n=n, seconds=0.5) for n in range(100)]
        assert all(calls.succeeded(*ids))
        nothing_is_left(calls)
        assert numbers(owls) == list(range(100))
        shares = [worker.said().count("tool_call_audited") for worker in (one, two)]
    assert owls.most_running <= 40
    assert min(shares) >= 20, shares


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_redis_may_be_restarted(end: signal.Signals, owls: ModuleServer, tmp_path: Path) -> None:
    """Stopped or killed, with calls running: each runs once, all results arrive, and the same worker takes new calls."""
    with own_redis(owls, tmp_path) as (bed, calls), bed.worker() as worker:
        calls.redis.config_set("appendfsync", "always")
        with holding(owls, "nap"):
            ids = [calls.call("nap", n=n, seconds=1) for n in range(5)]
            wait_until_sync(lambda: owls.running == 5, "the module has the calls")
            os.kill(pid_of(calls.redis), end)
        with _back_again(bed.redis_url, tmp_path):
            assert calls.succeeded(*ids) == [True] * 5, worker.said()
            after = calls.call("echo", n=5)
            assert calls.succeeded(after) == [True]
            nothing_is_left(calls)
            assert worker.process.poll() is None
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0
        assert "Traceback" not in worker.said()
    assert numbers(owls) == [0, 1, 2, 3, 4]


@contextlib.contextmanager
def _back_again(url: str, folder: Path) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        wait_until_sync(lambda: _is_up(stack, url, folder), "Redis is back")
        yield


def _is_up(stack: contextlib.ExitStack, url: str, folder: Path) -> bool:
    """The port may be taken for a moment by what is left of the old server."""
    try:
        stack.enter_context(redis_server(folder / "redis", port=port_of(url)))
    except FleetUnavailable:
        return False
    return True


def test_cut_connections_repeat_no_call(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """CLIENT KILL of every connection, three times while 50 calls run: each runs once, and all results arrive."""
    with bed.worker() as worker:
        with holding(owls, "nap"):
            ids = [calls.call("nap", n=n, seconds=0) for n in range(50)]
            wait_until_sync(lambda: owls.running == 50, "the module has the calls")
            for _ in range(3):
                assert worker.cut_connections(calls.redis) >= 2
                wait_until_sync(lambda: calls.redis.client_list(_type="pubsub"), "it listens again")
                wait_until_sync(lambda: len(worker.connections(calls.redis)) >= 2, "it is back")
        ids += [calls.call("nap", n=n, seconds=0) for n in range(50, 60)]

        assert all(calls.succeeded(*ids)), worker.said()
        nothing_is_left(calls)
        assert "Traceback" not in worker.said()
    assert numbers(owls) == list(range(60))


def test_connections_that_break_all_the_time_repeat_no_call(
    bed: TestBed, calls: FleetCalls, owls: ModuleServer
) -> None:
    """Two workers lose all connections twenty times while calls come and go: each call runs once, none is lost."""
    with bed.worker(worker_concurrency=20) as one, bed.worker(worker_concurrency=20) as two:
        ids = list[str]()
        for _ in range(20):
            ids += [calls.call("nap", n=len(ids) + n, seconds=0.02) for n in range(15)]
            one.cut_connections(calls.redis)
            two.cut_connections(calls.redis)

        assert all(calls.succeeded(*ids, seconds=2 * PATIENCE_SECONDS)), one.said()
        nothing_is_left(calls)
        assert "leases_lost" not in one.said() + two.said()
        assert "Traceback" not in one.said() + two.said()
    assert numbers(owls) == list(range(300))


def _is_heard(calls: FleetCalls) -> bool:
    try:  # a question that comes before the worker has subscribed anew is nobody's
        answers = calls.app.control.inspect(timeout=2, limit=1).ping()
        return answers is not None and list(answers.values()) == [{"ok": "pong"}]
    except RedisError:  # kombu's pools of this process still have connections to the old server
        return False


def test_remote_control_outlasts_an_answer_that_is_lost(owls: ModuleServer, tmp_path: Path) -> None:
    """A worker is asked something, and Redis dies before its answer: when Redis is back, the worker hears again."""
    order: dict[str, Any] = {
        "method": "ping",
        "arguments": {},
        "destination": None,
        "pattern": None,
        "matcher": None,
        "ticket": "1",
    }
    order |= {"reply_to": {"exchange": "reply.celery.pidbox", "routing_key": "nobody"}}
    body = base64.b64encode(json.dumps(order).encode()).decode()
    info = {"exchange": "celery.pidbox", "routing_key": ""}
    properties = {"delivery_info": info, "delivery_tag": "1", "body_encoding": "base64"}
    question = _message(body=body, headers={"clock": 1, "expires": 0}, properties=properties)
    with own_redis(owls, tmp_path) as (bed, calls), bed.worker(constants={_STALL: 1.5}) as worker:
        assert calls.ask("ping") == {"ok": "pong"}
        running = calls.call("nap", n=1, seconds=2)
        wait_until_sync(lambda: owls.running == 1, "the module has the call")
        worker.send_signal(signal.SIGSTOP)
        assert calls.redis.publish("/0.celery.pidbox", question) == 1
        os.kill(pid_of(calls.redis), signal.SIGKILL)
        worker.send_signal(signal.SIGCONT)
        wait_until_sync(lambda: "redis_line_away" in worker.said(), "it was noticed")
        with _back_again(bed.redis_url, tmp_path), contextlib.closing(FleetCalls(bed.settings)) as again:
            wait_until_sync(lambda: again.redis.client_list(_type="pubsub"), "it is back")
            wait_until_sync(lambda: _is_heard(again), "the worker answers")
            assert again.succeeded(running) == [True]
            nothing_is_left(again)
            assert "loop_recovered" not in worker.said()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0
    assert numbers(owls) == [1]


def _survives_a_freeze(
    owls: ModuleServer,
    folder: Path,
    what: str,
    is_over: Callable[[WorkerProcess, int], bool],
    constants: Mapping[str, float],
) -> None:
    """`is_over`: whether the worker, by its log or its port for probes, has waited for Redis for long enough."""
    with (
        own_redis(owls, folder) as (bed, calls),
        held_port(0) as port,
        bed.worker(visibility_timeout=30, probe_port=port, constants={_STALL: 1, **constants}) as worker,
    ):
        pid = pid_of(calls.redis)
        with holding(owls, "nap"):
            ids = [calls.call("nap", n=n, seconds=0) for n in range(20)]
            wait_until_sync(lambda: owls.running == 20, "the module has the calls")
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_until_sync(lambda: owls.running == 0, "the calls went on")
            wait_until_sync(lambda: is_over(worker, port), what)
        finally:
            os.kill(pid, signal.SIGCONT)
        ids += [calls.call("nap", n=n, seconds=0) for n in range(20, 25)]

        assert all(calls.succeeded(*ids)), worker.said()
        nothing_is_left(calls)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        said = worker.said()
    assert numbers(owls) == list(range(25))
    assert "stall" not in said


def test_redis_may_freeze(owls: ModuleServer, tmp_path: Path) -> None:
    """While it does, calls end and the loop ticks; afterwards everything that has happened is stored and acked, once."""

    def is_over(_: WorkerProcess, port: int) -> bool:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", verify=PLAIN).text == "Redis does not answer\n"

    _survives_a_freeze(owls, tmp_path, "a probe has waited for Redis for longer than a stall", is_over, {})


@pytest.mark.slow
def test_redis_may_freeze_for_long(owls: ModuleServer, tmp_path: Path) -> None:
    """The same beyond the time after which connections are made anew."""

    def is_over(worker: WorkerProcess, _port: int) -> bool:
        _, found, after = worker.said().rpartition("no sign of life")
        return bool(found) and "redis_line_away" in after

    _survives_a_freeze(owls, tmp_path, "a connection was given up, and none came about", is_over, _SOON)


@pytest.mark.slow
def test_a_half_open_connection_is_noticed(owls: ModuleServer, bed: TestBed, calls: FleetCalls) -> None:
    """The network swallows everything without a word: the worker finds out, and has new connections; no call was lost."""
    with tcp_proxy(port_of(bed.redis_url)) as proxy:
        far = TestBed(f"redis://127.0.0.1:{proxy.port}/0", bed.modules, bed.folder)
        with far.worker(constants=_SOON) as worker:
            with holding(owls, "nap"):
                ids = [calls.call("nap", n=n, seconds=0) for n in range(10)]
                wait_until_sync(lambda: owls.running == 10, "the module has the calls")
                proxy.go_deaf()
            ids.append(calls.call("nap", n=10, seconds=0))

            assert all(calls.succeeded(*ids)), worker.said()
            nothing_is_left(calls)
    assert numbers(owls) == list(range(11))


def _message(**changes: Any) -> bytes:
    headers = {"task": "toolfleet.execute", "id": "bad", "lang": "py"} | changes.pop("headers", {})
    info = {"exchange": "toolfleet", "routing_key": "tools.owls"}
    properties = {"delivery_info": info, "body_encoding": "base64", "correlation_id": "bad"}
    message = {"body": "W1tdLCB7fSwge31d", "headers": headers, "properties": properties}
    return json.dumps(message | {"content-type": "application/json", "content-encoding": "utf-8"} | changes).encode()


def _call_with(args: str) -> str:
    links = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
    return base64.b64encode(f"[{args}, {{}}, {links}]".encode()).decode()


GARBAGE = [
    b"no json",
    b"\x00\xff",
    b"[" * 100_000,
    b'{"__type__": "datetime", "__value__": 1}',
    _message(headers={"task": "somebody.elses"}),
    _message(headers={"eta": "tomorrow"}),
    _message(headers={"eta": 17}),
    _message(headers={"expires": {"a": 1}}),
    _message(headers={"timelimit": 5}),
    _message(headers={"retries": "many"}),
    _message(headers={"ignore_result": {}, "root_id": [], "argsrepr": {}}),
    _message(properties={"body_encoding": "rot13"}),
    _message(properties={"body_encoding": 5}),
    _message(body="no base64"),
    _message(body=""),
    _message(body=_call_with("5")),
    _message(body=_call_with("null")),
    _message(body=_call_with('{"message": "text"}')),
    _message(body=_call_with('["text"]'), headers={"retries": None}),
    _message(**{"content-type": "application/x-python-serialize"}),
    _message(**{"content-type": None, "content-encoding": "klingon"}),
]


def test_no_garbage_ends_a_worker(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """Whatever lies in a queue, the calls around it run, nothing is delivered again and again, and no slot is lost."""
    with bed.worker(worker_concurrency=4) as worker:
        ids = list[str]()
        for number, item in enumerate(GARBAGE * 2):
            calls.redis.lpush("tools.owls", item)
            ids.append(calls.call("nap", n=number, seconds=0))
        assert all(calls.succeeded(*ids)), worker.said()
        nothing_is_left(calls)
        with holding(owls, "nap"):
            naps = [calls.call("nap", n=100 + n, seconds=0) for n in range(4)]
            wait_until_sync(lambda: owls.running == 4, "all slots can be used")
        assert all(calls.succeeded(*naps))
        assert "message_quarantined" in worker.said()
        assert worker.process.poll() is None
        entries = [json.loads(entry) for entry in calls.redis.lrange(KEYS.quarantine, 0, -1)]
    assert len(entries) == int(calls.redis.get(KEYS.quarantined) or 0) >= 10
    assert "refused by the worker" in {entry["reason"] for entry in entries}


def _with(bed: TestBed, module: ModuleServer) -> TestBed:
    return TestBed(bed.redis_url, (*bed.modules, module), bed.folder)


def test_questions_and_revocations_reach_a_worker(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """By broadcast: it answers, says what it runs, and interrupts that; at the end it is told to stop."""
    with bed.worker(remote_control=frozenset({"shutdown"})) as worker:
        assert calls.ask("ping") == {"ok": "pong"}
        running = calls.call("nap", n=1, seconds=60)
        wait_until_sync(lambda: owls.running == 1, "it runs")
        assert [request["id"] for request in calls.ask("active")] == [running]
        calls.app.control.revoke(running, terminate=True)
        calls.wait_for({"REVOKED"}, running)
        wait_until_sync(lambda: owls.running == 0, "it was interrupted")

        calls.app.control.broadcast("shutdown")
        assert worker.wait() == 0
        assert "Traceback" not in worker.said()
    nothing_is_left(calls)


def test_queues_can_be_left_and_taken_up(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """A worker takes nothing out of a queue that it was told to leave, until it is told otherwise."""
    control = calls.app.control
    others = ModuleServer("others")
    others.add("echo", owls.tools["owls.echo"])
    with serve(others), _with(bed, others).worker(remote_control=frozenset({"cancel_consumer", "add_consumer"})):
        for _ in range(2):
            control.cancel_consumer("tools.others")
            wait_until_sync(lambda: len(calls.ask("active_queues")) == 2, "it is consumed no more")
            stays = calls.call("echo", queue="tools.others")
            assert calls.succeeded(calls.call("echo")) == [True]
            assert calls.status(stays) == "PENDING"
            control.add_consumer("tools.others")
            assert calls.succeeded(stays) == [True]
    nothing_is_left(calls)


def test_a_pool_can_grow_and_shrink(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """And takes no more messages than it has room for."""
    with bed.worker(worker_concurrency=3, remote_control=frozenset({"pool_grow", "pool_shrink"})):
        assert calls.pool()["max-concurrency"] == 3
        calls.app.control.pool_grow(2)
        with holding(owls, "nap"):
            naps = [calls.call("nap", n=n, seconds=0.5) for n in range(10, 15)]
            wait_until_sync(lambda: owls.running == 5, "all five run at once")
            calls.app.control.pool_shrink(4)
        wait_until_sync(lambda: calls.pool()["max-concurrency"] == 1, "it has shrunk")
        assert all(calls.succeeded(*naps))
        owls.forget()
        naps = [calls.call("nap", n=n, seconds=0.2) for n in range(3)]
        assert all(calls.succeeded(*naps))
        assert owls.most_running == 1


def test_the_pool_can_scale_itself(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """With `--autoscale` the room for messages grows and shrinks with the pool."""
    command = [*worker_command("all"), "--autoscale=6,2"]
    settings = bed.settings.model_copy(update={"remote_control": frozenset({"autoscale"})})
    with program(bed, command, "autoscaled", ready=READY, settings=settings):
        with holding(owls, "nap"):
            ids = [calls.call("nap", n=n, seconds=0) for n in range(12)]
            wait_until_sync(lambda: owls.running == 6, "it has grown")
            calls.app.control.autoscale(8, 2)
            wait_until_sync(lambda: owls.running == 8, "it has grown further")

        assert all(calls.succeeded(*ids))
        nothing_is_left(calls)
    assert owls.most_running == 8
    assert numbers(owls) == list(range(12))


def test_a_cold_shutdown_gives_everything_back_at_once(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """SIGQUIT: what runs and what is held until its time is in the queue again, flagged."""
    with bed.worker() as worker:
        for n in range(20):
            calls.call("nap", n=n, seconds=60)
        calls.call("nap", n=20, seconds=60, countdown=60)
        wait_until_sync(lambda: owls.running == 20 and calls.unacked() == 21, "the worker has the calls")
        wait_until_sync(
            lambda: calls.ask("scheduled"),
            "it holds the last one: one that arrives just now was not begun, and has no flag",
        )
        worker.send_signal(signal.SIGQUIT)
        worker.wait()

        assert (calls.queued(), calls.unacked()) == (21, 0)
    assert all(json.loads(item)["redelivered"] is True for item in calls.redis.lrange("tools.owls", 0, -1))


@pytest.mark.slow
def test_a_worker_ends_without_redis(owls: ModuleServer, tmp_path: Path) -> None:
    """Told to stop while Redis is away, with calls running: it ends in a bounded time."""
    with own_redis(owls, tmp_path) as (bed, calls), bed.worker(drain_seconds=1) as worker:
        with holding(owls, "nap"):
            for n in range(3):
                calls.call("nap", n=n, seconds=0)
            wait_until_sync(lambda: owls.running == 3, "the module has the calls")
            os.kill(pid_of(calls.redis), signal.SIGKILL)
        wait_until_sync(lambda: "redis_line_away" in worker.said(), "it was noticed")
        worker.send_signal(signal.SIGTERM)

        worker.wait(seconds=3 * PATIENCE_SECONDS)
        assert "Traceback" not in worker.said()


@pytest.mark.slow
def test_two_hundred_queues(calls: FleetCalls, redis_url: str, tmp_path: Path, owls: ModuleServer) -> None:
    """One worker serves them all; a queue that it does not consume is left alone."""
    names = [f"m{number}" for number in range(200)]
    module = ModuleServer("m0")
    with serve(module):
        for name in names:
            module.tools[f"{name}.echo"] = owls.tools["owls.echo"]
            offer(calls.redis, name, {"name": f"{name}.echo", "description": "", "parameters": []})
        bed = TestBed(redis_url, (module,), tmp_path / "logs")
        bed.more = {}
        services = dict.fromkeys(names, module.url)
        with bed.worker(module_services=services) as worker:
            stranger = calls.call("echo", queue="tools.strangers")
            ids = [calls.call("echo", queue=f"tools.{name}") for name in names for _ in range(2)]

            assert all(calls.succeeded(*ids)), worker.said()
            assert calls.status(stranger) == "PENDING"
    assert calls.redis.llen("tools.strangers") == 1
