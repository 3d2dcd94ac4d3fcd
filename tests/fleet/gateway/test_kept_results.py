"""How long a result stays that a gateway has handed out."""

import asyncio
import uuid

import httpx
import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.gateways.gateway_process import gateway_process
from support.waiting import wait_until_answered
from toolfleet_registry.redis.keys import Keys

KEYS = Keys()


async def test_a_result_stays_for_a_while(bed: TestBed, here: httpx.AsyncClient) -> None:
    """Whoever lost the answer asks again; afterwards it goes, and who asks then learns that it was done with."""
    if not bed.settings.is_fast:
        pytest.skip("the ledger's record has the text, too, and goes by itself")
    answer = await here.post("/calls", json={"tool_name": "owls.echo", "arguments": {"a": 1}})
    location = f"/calls/{answer.json()['audit']['call_id']}"
    key = KEYS.result(answer.json()["audit"]["call_id"])
    async with Redis.from_url(bed.redis_url) as redis:

        async def goes_soon() -> bool:
            return 500 < await redis.ttl(key) <= 600

        await wait_until_answered(
            goes_soon, "it goes within ten minutes"
        )  # which the gateway says, and does not wait for
        again = await here.get(location)
        await redis.delete(key)
        later = await here.get(location)

    assert again.json()["result"] == answer.json()
    assert later.json()["result"]["error_code"] == "result_dropped"


async def test_a_large_result_under_a_key_goes_after_a_while(bed: TestBed) -> None:
    """A repeat brings the first result, and later only that it was done: it is not run again."""
    body = {"tool_name": "owls.echo", "arguments": {"a": "x" * 5000}}
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    with gateway_process(bed, env={"TOOLFLEET_GATEWAY_RESULT_KEPT_SECONDS": "5"}) as brief:
        async with brief.client() as client, Redis.from_url(bed.redis_url) as redis:
            first, second = [await client.post("/calls", json=body, headers=headers) for _ in range(2)]
            key = KEYS.result(first.json()["audit"]["call_id"])
            async with asyncio.timeout(30):
                while await redis.strlen(key) > 5000:  # noqa: ASYNC110 - Redis is asked, and nobody tells
                    await asyncio.sleep(0.1)
            third = await client.post("/calls", json=body, headers=headers)

    assert second.json() == first.json()
    assert (third.status_code, third.json()["error_code"]) == (200, "result_dropped")
