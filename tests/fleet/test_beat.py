"""Beat keeps the manifests fresh, through the control queue that the fast lane serves."""

import asyncio
import sys
from pathlib import Path

from support.fleet import TestBed, program
from support.module_server import serve
from support.onlookers import read_by_its_user
from support.owls import make_module
from support.waiting import wait_until
from toolfleet import Caller, ToolFleet
from toolfleet_workers.commands import beat_command
from toolfleet_workers.redis_server import redis_server


async def test_a_new_tool_is_offered_within_a_refresh(tmp_path: Path, owner: Caller) -> None:
    """Two beats run side by side; the modules are asked at once and then every interval, and agents see what changed.

    Neither beats nor workers can be read by other programs of their user.
    """
    logs = tmp_path / "logs"
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
                async with asyncio.timeout(20):
                    while "owls.new" not in names:
                        names = {tool.name for tool in await fleet.tools(owner)}
                        await asyncio.sleep(0.01)

    assert owls.looks <= 5
