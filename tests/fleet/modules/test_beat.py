"""Beat as a process of its own: whom it feeds, what can be read of it, and a clock that is set."""

import sys
from pathlib import Path

import pytest
from redis import Redis

from support.clocks import WallClock
from support.fleet import TestBed, program
from support.module_server import serve
from support.owls import make_module
from support.programs.onlookers import read_by_its_user
from support.waiting import wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.queues import CONTROL


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_no_other_program_of_their_user_reads_their_environments(bed: TestBed, worker: WorkerProcess) -> None:
    """Neither beats' nor workers': these hold keys."""
    with program(bed, beat_command(), "beat", ready="beat: Starting") as beat:
        assert [read_by_its_user(it.process.pid) for it in (worker, beat)] == [set(), set()]


def test_a_beat_alone_feeds_the_directory(tmp_path: Path) -> None:
    """Agents learn the modules of its settings without a worker, for as long as it runs; and its log has no line a second."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with serve(make_module()) as owls, redis_server(tmp_path / "redis") as url, Redis.from_url(url) as redis:
        bed = TestBed(url, (owls,), logs)
        keys = bed.settings.keys

        def fed() -> list[str]:
            return [member for member in map(str, redis.zrange(keys.module_feeds, 0, -1)) if "owls " in member]

        with program(bed, beat_command(), "beat", ready="beat: Starting") as beat:
            wait_until_sync(lambda: fed() and redis.hexists(keys.modules, "owls"), "the directory is fed")
            wait_until_sync(lambda: redis.llen(CONTROL) >= 2, "beat sends its tasks")
        said, left = beat.said(), fed()

    assert left == []
    assert "due task" not in said


def test_a_clock_that_is_set_back_holds_nothing_up(tmp_path: Path) -> None:
    """Beat goes on by the clock that it has by then, and says that this was set."""
    logs = tmp_path / "logs"
    logs.mkdir()
    clock = WallClock(tmp_path)
    with redis_server(tmp_path / "redis") as url, Redis.from_url(url) as redis:
        bed = TestBed(url, (), logs)

        def sends(moment: str) -> None:
            before = redis.llen(CONTROL)
            wait_until_sync(lambda: redis.llen(CONTROL) >= before + 2, f"beat sends its tasks {moment}")

        with program(bed, beat_command(), "beat", ready="beat: Starting", env=clock.env) as beat:
            sends("by the right clock")
            clock.set_ahead(400)
            sends("by a clock that is ahead")
            clock.set_ahead(0)
            sends("by one that was set back")
            wait_until_sync(lambda: "beat_clock_set_back" in beat.said(), "beat says so")
