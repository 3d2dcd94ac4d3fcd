"""How long a result stays that a gateway has handed out."""

import asyncio
import uuid

import httpx
import pytest

from bed.fleet import Bed, until
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.calls import begun_calls

KEYS = Keys()
KEPT_SECONDS = 60


@pytest.fixture(autouse=True)
def _kept_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that lives for a minute is quicker than one that lives for the ten that results are kept."""
    monkeypatch.setattr(begun_calls, "RESULT_KEPT_SECONDS", float(KEPT_SECONDS))


def call(text: str) -> dict[str, object]:
    return {"tool_name": "owls.echo", "arguments": {"a": text}}


async def test_a_result_stays_for_a_while(bed: Bed, here: httpx.AsyncClient) -> None:
    """Whoever lost the answer asks again; afterwards it goes, and who asks then learns that it was done with."""
    answer = await here.post("/calls", json=call("hoo"))
    call_id = answer.json()["audit"]["call_id"]
    # The gateway says so, and does not wait for it.
    await until(lambda: 0 < bed.ask("TTL", KEYS.result(call_id)) <= KEPT_SECONDS, "it goes soon")
    await asyncio.sleep(KEPT_SECONDS - 5)
    again = await here.get(f"/calls/{call_id}")
    await asyncio.sleep(KEPT_SECONDS + 1)  # since it was asked for again
    later = await here.get(f"/calls/{call_id}")

    assert again.json()["result"] == answer.json()
    assert later.json()["result"]["error_code"] == "result_dropped"


async def test_a_large_result_under_a_key_goes_after_a_while(here: httpx.AsyncClient) -> None:
    """A repeat brings the first result, and later only that it was done: it is not run again."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    answers = []
    for pause in (0, KEPT_SECONDS - 5, KEPT_SECONDS + 1):
        await asyncio.sleep(pause)
        answers.append(await here.post("/calls", json=call("x" * 5000), headers=headers))
    first, second, third = answers

    assert second.json() == first.json()
    assert (third.status_code, third.json()["error_code"]) == (200, "result_dropped")
