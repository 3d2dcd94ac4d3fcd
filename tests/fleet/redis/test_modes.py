"""One Redis, one transport: workers that were started differently."""

import subprocess
from pathlib import Path

import pytest
from redis import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.programs.fork_server import run
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.commands import worker_command
from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.settings import Settings


@pytest.fixture
def own_bed(redis_url: str, owls: ModuleServer, bed: TestBed) -> TestBed:
    return TestBed(redis_url, (owls,), bed.folder)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_a_worker_with_another_transport_does_not_start(own_bed: TestBed, *, first: bool, second: bool) -> None:
    """It ends with 1 and one sentence; the fleet that is there works on, and after it has ended the other may come."""
    with own_bed.worker(fast_transport=first) as worker:
        refused = _run_worker(own_bed.settings.model_copy(update={"fast_transport": second}))
        assert worker.process.poll() is None

    assert refused.returncode == 1
    assert "alike for the whole fleet" in refused.stderr
    assert "Traceback" not in refused.stderr
    with own_bed.worker(fast_transport=second):
        pass


def test_another_pool_is_refused_with_the_fast_transport(own_bed: TestBed) -> None:
    """Nothing would renew its leases: it ends with one sentence that names the setting."""
    settings = own_bed.settings.model_copy(update={"fast_transport": True})

    refused = _run_worker(settings, "--pool=solo")

    assert refused.returncode != 0
    assert "set TOOLFLEET_FAST_TRANSPORT=0" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_worker_that_meets_another_mode_later_ends(own_bed: TestBed) -> None:
    """Redis was away when both started, or was emptied since: within seconds the one that notices ends, and says why."""
    with own_bed.worker(fast_transport=True) as worker:
        _note(own_bed.redis_url, "stock/7200s elsewhere:1")
        wait_until_sync(lambda: worker.process.poll() is not None, "the worker has ended", seconds=PATIENCE_SECONDS)

        assert "alike for the whole fleet" in worker.said()
        assert "Traceback" not in worker.said()


def _note(url: str, member: str) -> None:
    with Redis.from_url(url) as redis:
        now = int(redis.time()[0])
        redis.delete("toolfleet:modes")
        redis.zadd("toolfleet:modes", {member: now})
        redis.expire("toolfleet:modes", 60)


def _run_worker(settings: Settings, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*worker_command("all"), *options]
    return run(command, env=environment_of(settings), cwd=Path.cwd(), timeout_seconds=3 * PATIENCE_SECONDS)
