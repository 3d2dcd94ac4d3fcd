"""What becomes of an unsigned end while Redis does not say who is at work."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import wait_until
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.presence.lane_capacity import LaneCapacity
from toolfleet_tasks.redis.connection import PipelinedConnection
from toolfleet_tasks.results import end_check as end_check_module
from toolfleet_tasks.results import verifier as verifier_module
from toolfleet_tasks.results.end_check import EndCheck, Meta
from toolfleet_tasks.results.reader import ResultReader
from toolfleet_tasks.results.verifier import Verifier

KEY = "0123456789abcdef0123456789abcdef"
CALL = "call-1"
END: Meta = {"status": "SUCCESS", "result": "hoot", "task_id": CALL}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FaultyRedis]:
    """A Redis whose fleet has a worker that does not sign, as older ones do not, which has ended a call."""
    with faulty_redis(tmp_path / "redis") as server:
        settings = Settings(redis_url=server.url)
        await LaneCapacity(settings, count=10).note()
        server.look.hset(settings.keys.call(CALL), mapping={"state": "done", "result": json.dumps(END)})
        yield server


@pytest.fixture
async def connection(server: FaultyRedis) -> AsyncIterator[PipelinedConnection]:
    connection = PipelinedConnection(connection_factory(server.url), name="test")
    connection.start()
    await connection.connected()
    yield connection
    await connection.aclose()


@pytest.fixture
def verifier(server: FaultyRedis, connection: PipelinedConnection, monkeypatch: pytest.MonkeyPatch) -> Verifier:
    monkeypatch.setattr(verifier_module, "_CHECK_PATIENCE_SECONDS", 0.2)
    return Verifier(connection, Settings(redis_url=server.url, signing_key=KEY))


async def test_who_is_at_work_is_asked_again_when_redis_is_back(
    server: FaultyRedis, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it did not say so is not kept for an answer."""
    with server.frozen():
        assert not await verifier.believes(CALL, "result", "hoot", None)
    monkeypatch.setattr(verifier_module, "_CHECK_PATIENCE_SECONDS", 20)
    assert await verifier.believes(CALL, "result", "hoot", None)


async def test_an_older_workers_end_is_no_forgery_while_nobody_says_who_is_at_work(
    server: FaultyRedis, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets it as soon as Redis is back, and is told of no forgery."""
    monkeypatch.setattr(end_check_module, "_PAUSE_SECONDS", 0.01)
    ends, keys = list[Meta](), Settings(redis_url=server.url).keys
    reader = ResultReader(PipelinedConnection(connection_factory(server.url), name="reads"), lambda *_: None)
    checks = EndCheck(verifier, reader, keys=keys, ended=lambda _, meta: ends.append(meta))
    channel = keys.result(CALL).encode()
    assert await reader.end_of(keys.call(CALL), channel) is not None
    with server.frozen(), capture_logs() as logs:
        assert not checks.passes(channel, END)
        await wait_until(lambda: logs, "it has given up asking who is at work")
    assert [line["event"] for line in logs] == ["older_workers_not_looked_up"]
    await wait_until(lambda: ends, "its end is taken")

    assert (ends, verifier.refused) == ([END], 0)
    await checks.aclose()
    await reader.aclose()
