"""One Redis, one transport, one lease: processes that were started differently."""

import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.programs.fork_server import run
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.environment import environment_of, gateway_command, worker_command
from toolfleet_registry.settings import Settings


@pytest.fixture
def own_bed(redis_url: str, owls: ModuleServer, bed: TestBed) -> TestBed:
    return TestBed(redis_url, (owls,), bed.folder)


STARTS = {
    "worker": worker_command("all"),
    "beat": [sys.executable, "-m", "toolfleet_cli", "beat"],
    "gateway": gateway_command(1),
    "host": [sys.executable, "-m", "toolfleet_cli", "host", "folder", "."],
    "up": [sys.executable, "-m", "toolfleet_cli", "up"],
    "agent": [sys.executable, "-c", "from toolfleet import ToolFleet; ToolFleet()"],
}


@pytest.mark.parametrize("name", STARTS)
def test_nothing_starts_without_the_fleets_transport(name: str, elsewhere: Path) -> None:
    """A fleet that has it switched off, as earlier versions let it, is told how to move; nothing is connected to."""
    variables = {"TOOLFLEET_REDIS_URL": "redis://127.0.0.1:1/0", "TOOLFLEET_FAST_TRANSPORT": "0"}
    refused = run(STARTS[name], env=variables, cwd=elsewhere, timeout_seconds=3 * PATIENCE_SECONDS)

    assert refused.returncode != 0
    sentence = refused.stderr.splitlines()[-1]
    assert "TOOLFLEET_FAST_TRANSPORT: kombu's transport is for RabbitMQ only" in sentence
    assert "First end all workers of the version before" in sentence
    assert "Then take the setting away everywhere" in sentence
    assert ("Traceback" in refused.stderr) is (name == "agent")


def test_a_worker_with_another_lease_does_not_start(own_bed: TestBed) -> None:
    """It ends with 1 and one sentence; the fleet that is there works on, and after it has ended the other may come."""
    with own_bed.worker() as worker:
        refused = _run_worker(own_bed.settings.model_copy(update={"visibility_timeout": 30}))
        assert worker.process.poll() is None

    assert refused.returncode == 1
    assert "alike for the whole fleet" in refused.stderr
    assert "Traceback" not in refused.stderr
    with own_bed.worker(visibility_timeout=30):
        pass


@pytest.mark.parametrize("broker", [None, "amqp://127.0.0.1:1//"], ids=["redis", "rabbitmq"])
def test_another_pool_is_refused(own_bed: TestBed, broker: str | None) -> None:
    """Nothing would renew the leases of its calls: it ends with one sentence that names the option."""
    refused = _run_worker(own_bed.settings.model_copy(update={"broker_url": broker}), "--pool=solo")

    assert refused.returncode != 0
    assert "leave -P out" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("note", ["stock/7200s elsewhere:1", "fast/30s elsewhere:1"])
def test_a_worker_that_meets_another_mode_later_ends(own_bed: TestBed, note: str) -> None:
    """Redis was away when both started, or was emptied since: within seconds the one that notices ends, and says why."""
    with own_bed.worker() as worker:
        _note(own_bed.redis_url, note)
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
