"""A Redis that is full, or no master, while a worker starts: it waits, and then works."""

from pathlib import Path

import pytest
from redis import Redis

from support.fleet import TestBed, program
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import worker_command
from toolfleet_cli.local.redis_server import redis_server

TRIES_AGAIN = "worker_waits_for_redis"


@pytest.mark.parametrize(
    ("refusal", "end"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    ],
    ids=["full", "replica"],
)
async def test_a_worker_that_starts_meanwhile_works_afterwards(
    owls: ModuleServer, owner: Caller, tmp_path: Path, refusal: tuple[str, ...], end: tuple[str, ...]
) -> None:
    """It does not end, with which whoever started it would have to begin anew."""
    (tmp_path / "logs").mkdir()
    with redis_server(tmp_path) as url, Redis.from_url(url) as redis:
        bed = TestBed(url, (owls,), tmp_path / "logs")
        redis.execute_command(*refusal)
        with program(bed, worker_command("all"), "worker", ready=TRIES_AGAIN) as worker:
            redis.execute_command(*end)
            async with ToolFleet(settings=bed.settings) as fleet:
                result = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"a": 1}), owner, timeout=20)
            assert worker.process.poll() is None

    assert (result.success, result.result) == (True, {"a": 1})
