"""Beat keeps the manifests fresh, through the control queue that the fast lane serves."""

import asyncio
import sys
import time
from pathlib import Path

from redis import Redis

from support.clocks import WallClock
from support.fleet import TestBed, program
from support.module_server import serve
from support.owls import make_module
from support.programs.onlookers import read_by_its_user
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from toolfleet import Caller, ToolFleet
from toolfleet_cli.local.commands import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.queues import CONTROL


async def test_a_new_tool_is_offered_within_a_refresh(tmp_path: Path, owner: Caller) -> None:
    """Two beats run side by side; the modules are asked at once and then every interval, and agents see what changed.

    Neither beats nor workers can be read by other programs of their user.
    """
    logs, began_at = tmp_path / "logs", time.monotonic()
    logs.mkdir()
    with serve(make_module()) as owls, redis_server(tmp_path / "redis") as url:
        bed = TestBed(url, (owls,), logs, {"refresh_interval_seconds": 2})
        beats = [program(bed, beat_command(), f"beat-{number}", ready="beat: Starting") for number in range(2)]
        with bed.worker(lane="fast") as worker, beats[0] as beat, beats[1]:
            if sys.platform == "linux":  # their environments hold keys
                assert [read_by_its_user(it.process.pid) for it in (worker, beat)] == [set(), set()]
            await wait_until(lambda: owls.looks >= 1, "beat has had the module asked")
            async with ToolFleet(settings=bed.settings) as fleet:
                owls.add("new", owls.tools["owls.echo"])
                names: set[str] = set()
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while "owls.new" not in names:
                        names = {tool.name for tool in await fleet.tools(owner)}
                        await asyncio.sleep(0.01)

    # As often as its intervals allow since the first process began, and not once for each beat.
    assert owls.looks <= 2 + (time.monotonic() - began_at) / 2


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
