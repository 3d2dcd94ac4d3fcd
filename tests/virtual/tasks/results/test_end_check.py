"""What becomes of an unsigned end while Redis does not say who is at work."""

import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from bed.fleet import Bed, until
from support.workers.held_messages import open_connection
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks.presence import LaneCapacity
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results.verifier import EndCheck, Meta, ResultReader, Verifier

KEY = "0123456789abcdef0123456789abcdef"
CALL = "call-1"
END: Meta = {"status": "SUCCESS", "result": "hoot", "task_id": CALL}


@pytest.fixture
async def verifier(bed: Bed, redis: Redis) -> AsyncIterator[Verifier]:
    """A caller's, whose fleet has a worker that does not sign, as older ones do not, which has ended a call."""
    await LaneCapacity(bed.settings, count=10).note()
    record = bed.settings.keys.call(CALL)
    await redis.hset(record, mapping={"state": "done", "result": json.dumps(END)})
    await redis.expire(record, 3600)
    async with open_connection(bed.redis.url) as connection:
        yield Verifier(connection, bed.with_settings(signing_key=KEY))


async def test_who_is_at_work_is_asked_again_when_redis_is_back(bed: Bed, verifier: Verifier) -> None:
    """That it did not say so is not kept for an answer."""
    bed.redis.freeze()
    assert not await verifier.believes(CALL, "result", "hoot", None)
    bed.redis.thaw()
    assert await verifier.believes(CALL, "result", "hoot", None)


async def test_an_older_workers_end_is_no_forgery_while_nobody_says_who_is_at_work(
    bed: Bed, verifier: Verifier
) -> None:
    """Its caller gets it as soon as Redis is back, and is told of no forgery."""
    ends, keys = list[Meta](), bed.settings.keys
    reader = ResultReader(PipelinedConnection(connection_factory(bed.redis.url), name="reads"), lambda *_: None)
    checks = EndCheck(verifier, reader, keys=keys, ended=lambda _, meta: ends.append(meta))
    channel = keys.result(CALL).encode()
    assert await reader.end_of(keys.call(CALL), channel) is not None
    bed.redis.freeze()
    with capture_logs() as logs:
        assert not checks.passes(channel, END)
        await until(lambda: logs, "it has given up asking who is at work")
    bed.redis.thaw()
    assert [line["event"] for line in logs] == ["older_workers_not_looked_up"]
    await until(lambda: ends, "its end is taken")

    assert (ends, verifier.refused) == ([END], 0)
    await checks.aclose()
    await reader.aclose()
