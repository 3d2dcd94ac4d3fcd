"""Calls that wait for their turn where messages lie in RabbitMQ: a worker publishes a call when its turn has come."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import nap
from support.servers.rabbitmq import RabbitMq
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.redis.keys import Keys

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
KEYS = Keys()
CALLS = [ToolCall(tool_name="owls.nap", arguments={"nest": "a", "n": number, "seconds": 0.2}) for number in range(6)]


@pytest.fixture
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    schema = {"type": "object", "properties": {"nest": {}, "n": {}, "seconds": {}}}
    module.add("nap", nap, effect="read", concurrency_key="nest", input_schema=schema)
    with serve(module) as served:
        yield served


@pytest.fixture
def bed(broker: RabbitMq, module: ModuleServer, tmp_path: Path) -> Iterator[TestBed]:
    logs = tmp_path / "logs"
    logs.mkdir()
    with redis_server(tmp_path / "redis") as url:
        yield TestBed(url, (module,), logs, {"broker_url": broker.url})


@pytest.mark.parametrize("agent", ["of this version", "older"])
async def test_calls_run_one_after_the_other(
    bed: TestBed, module: ModuleServer, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """One that waits is in no queue, and after the last nothing is kept. An older agent's are put into the line by a worker."""
    if agent == "older":
        monkeypatch.setattr("toolfleet_tasks.calls.prepare.CallPreparation._turn_of", lambda *_: (None, None))
    with bed.worker(), bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet:
            results = await fleet.call_many(CALLS, ADA, timeout=60)

    assert all(result.success for result in results), results
    assert module.most_running == 1
    if agent != "older":
        assert [request["arguments"]["n"] for request in module.requests] == [*range(6)]
    async with Redis.from_url(str(bed.settings.redis_url)) as redis:
        kinds = ("turns:*", "line*", "turn-of:*")
        assert [key for kind in kinds for key in await redis.keys(KEYS.begin + kind)] == []
