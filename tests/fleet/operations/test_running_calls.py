"""What Celery's tools see of a worker's running calls, and how they stop them."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, holding
from support.waiting import wait_until_sync
from toolfleet_registry.redis.keys import Keys


@pytest.fixture
def bed(owls: ModuleServer, redis_url: str, tmp_path: Path) -> TestBed:
    owls.forget()
    return TestBed(redis_url, (owls,), tmp_path)


@pytest.fixture
def calls(bed: TestBed, owls: ModuleServer) -> Iterator[FleetCalls]:
    calls = FleetCalls(bed.settings)
    manifest = {"module_name": "owls", "description": "", "tools": owls.definitions}
    calls.redis.set(Keys().module_manifest("owls"), json.dumps(manifest), ex=3600)  # calls need not wait for it
    yield calls
    calls.close()


def test_running_calls_are_shown_and_terminated(bed: TestBed, calls: FleetCalls, owls: ModuleServer) -> None:
    """They are active, and count; `revoke` alone leaves a running one alone, and drops the one that still waits."""
    with bed.worker(worker_concurrency=2) as worker, holding(owls, "nap") as let_go:
        first, second = (calls.call("nap", seconds=0) for _ in range(2))
        wait_until_sync(lambda: owls.running == 2, "the module has them")
        shown = {request["id"]: request for request in calls.ask("active")}

        assert shown.keys() == {first, second}
        assert shown[first]["args"] == "(…)"
        assert shown[first]["kwargs"] == "lane=fast, soft_limit=61s, hard_limit=70s"
        assert shown[first]["delivery_info"]["routing_key"] == "tools.owls"
        assert shown[first]["time_start"]
        assert calls.ask("reserved") == []
        assert calls.ask("stats")["total"] == {"toolfleet.execute": 2}

        waiting = calls.call("nap", seconds=0)
        calls.app.control.revoke([first, waiting])
        wait_until_sync(lambda: set(calls.ask("revoked")) == {first, waiting}, "it has heard")
        calls.app.control.revoke(second, terminate=True)
        wait_until_sync(lambda: owls.running == 1, "only the terminated one was cut off")
        wait_until_sync(lambda: [one["id"] for one in calls.ask("active")] == [first], "one is left")
        calls.wait_for({"REVOKED"}, waiting)
        let_go()
        assert calls.succeeded(first) == [True]

        wait_until_sync(lambda: not calls.unacked() and not calls.queued(), "everything was acked")
        assert calls.ask("active") == []
        assert "Traceback" not in worker.said()


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGTERM])
def test_a_shutdown_gives_running_calls_back(
    bed: TestBed, calls: FleetCalls, owls: ModuleServer, how: signal.Signals
) -> None:
    """A cold one at once, a warm one after its patience: their messages are in their queue again, and no call is lost."""
    with holding(owls, "nap") as let_go:
        with bed.worker(drain_seconds=0.1) as worker:
            ids = [calls.call("nap", seconds=0) for _ in range(3)]
            wait_until_sync(lambda: owls.running == 3, "the module has them")
            worker.send_signal(how)
            worker.wait()
        waiting = [json.loads(item)["headers"]["id"] for item in calls.redis.lrange("tools.owls", 0, -1)]
        assert sorted(waiting) == sorted(ids)
        let_go()
        with bed.worker():
            assert all(calls.succeeded(*ids))
