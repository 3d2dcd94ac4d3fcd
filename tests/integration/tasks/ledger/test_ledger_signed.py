"""In a fleet that signs, the ledger passes on what the fleet has stored for this very call."""

import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.published_call import published
from support.workers.ledgers import (
    RECORD,
    RESULT,
    SUCCESS,
    TOOL,
    attempt,
    begun,
    claimed,
    close,
    finish,
    run_out,
    worker_ledger,
)
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.attempts import Outcome
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger, NotClaimed
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.messages.signing import Signatures
from toolfleet_tasks.results.stored import celery_value, read_stored

KEY = "a secret of more than thirty-two characters"
READ = published(effect="read")
EVIL = ToolResult.ok(TOOL, "evil")


@pytest.fixture(params=[True, False], ids=["redis", "rabbitmq"])
async def ledger(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Ledger]:
    async with worker_ledger(redis_url, signing_key=KEY, writes_results=request.param) as ledger:
        yield ledger


async def test_a_stored_result_is_read_as_it_was_written(ledger: Ledger) -> None:
    """By whoever asks for the call once more, and by whoever would end it."""
    await finish(ledger, await begun(ledger, READ))

    claim = await ledger.claim(READ)
    assert isinstance(claim, NotClaimed)
    assert read_stored(claim.result, TOOL) == SUCCESS.result
    stored = await ledger.end(READ, fleet_results.at_deadline(READ), data_id=ANY_DATA)
    assert read_stored(stored, TOOL) == SUCCESS.result


async def test_an_end_from_outside_is_signed_as_well(ledger: Ledger, redis: Redis) -> None:
    """An agent that takes its call back writes its end."""
    stored = await ledger.end(READ, fleet_results.taken_back(READ), data_id=ANY_DATA)
    claim = await ledger.claim(READ)

    assert isinstance(claim, NotClaimed)
    assert (claim.reason, claim.result) == ("done", stored)
    assert "signature" in json.loads(str(await redis.get(RESULT)))


@pytest.mark.parametrize("whose", ["nobody's", "another call's", "a first attempt's"])
async def test_what_was_put_in_its_place_is_as_if_it_had_expired(ledger: Ledger, redis: Redis, whose: str) -> None:
    """In the record or under Celery's key; it is counted, and logged with the call's id."""
    signing, text = Settings(signing_key=KEY), json_text.dump(EVIL)
    signature = {
        "nobody's": "",
        "another call's": Signatures(signing, "result").of("call-2", text),
        "a first attempt's": Signatures(signing, "attempt").of("call-1", text),
    }[whose]
    await finish(ledger, await begun(ledger, READ))
    forged = celery_value("call-1", text, signature)
    await redis.set(RESULT, forged, ex=60)
    await redis.hset(RECORD, "result", forged)
    with capture_logs() as logs:
        claim = await ledger.claim(READ)

    assert isinstance(claim, NotClaimed)
    assert (claim.reason, claim.result) == ("done", "")
    assert await ledger.end(READ, fleet_results.at_deadline(READ), data_id=ANY_DATA) == ""
    assert [(line["event"], line["call_id"]) for line in logs] == [("forgery_refused", "call-1")]
    assert ledger.verifier.refused == 2


async def test_a_forged_attempt_is_nobodys_end(ledger: Ledger, redis: Redis) -> None:
    """A worker that ends the call as its last attempt did would sign it."""
    failed = attempt(Outcome.FAILED)
    for _ in range(2):
        await close(ledger, await begun(ledger, READ), failed)
    claim = await claimed(ledger, READ)
    assert (claim.granted, claim.last) == ("exhausted", failed.result)
    await run_out(redis)
    await redis.hset(RECORD, "last", json_text.dump(EVIL))
    claim = await claimed(ledger, READ)

    assert (claim.granted, claim.last) == ("exhausted", None)
    assert ledger.verifier.refused == 1


async def test_without_a_key_not_a_byte_is_added(redis_url: str, redis: Redis) -> None:
    """The record and Celery's value are as they always were."""
    async with worker_ledger(redis_url) as ledger:
        await close(ledger, await begun(ledger, READ), attempt(Outcome.FAILED))
        assert not any("signature" in str(name) for name in await redis.hkeys(RECORD))
        await finish(ledger, await begun(ledger, READ))

    assert set(json.loads(str(await redis.get(RESULT)))) == {
        *("status", "result", "traceback", "children", "date_done", "task_id")
    }
