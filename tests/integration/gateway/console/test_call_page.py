"""The page of a call: a bar and a row for each part of its time, whatever has happened to it."""

import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.console.plain_browser import Page, browsing
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys

BOB = Caller(user_id="bob", permission="user", allowed_modules="*")


@pytest.fixture
async def redis(bed: TestBed) -> AsyncIterator[Redis]:
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        yield redis


async def page_when(gateway: KeyedGateway, call_id: str, text: str) -> Page:
    """The call's page, once it says that."""
    last = list[Page]()
    async with browsing(gateway, "vera") as browser:

        async def says() -> bool:
            last[:] = [await browser.get(f"/calls/{call_id}")]
            return text in last[0].text

        await wait_until_answered(says, f"the page says {text!r}")
    return last[0]


def bars(page: Page) -> list[str]:
    return re.findall(r'<rect class="(\w+)"', page.html)


def took_ms(page: Page, phase: str) -> float:
    """How long the page says that a part took."""
    (row,) = re.findall(f'<tr class="{phase}">.*?</tr>', page.html)
    amount, unit = re.findall(r'data-label="Took" class="number">([0-9.]+) (m?s)<', row)[0]
    return float(amount) * (1000 if unit == "s" else 1)


async def planted(redis: Redis, trail: str, **fields: Any) -> str:
    """The id of a call that ended a minute ago, as a worker has written its line."""
    call_id, ended = str(uuid.uuid4()), time.time() - 60
    line = {
        "call_id": call_id,
        "tool": "owls.echo",
        "ts": ended,
        "user_id": "bob",
        "queued_ms": 300,
        "duration_ms": 500,
    }
    line |= {"attempts": 2, "worker": "fast@b", "outcome": "success", "decisions": {"permission": "allowed"}}
    at = round(ended * 1000) - 2000
    moments = {f"t{number}": str(at + number * 100) for number in range(21)}
    await redis.xadd(Keys().audit, {"line": json.dumps({**line, "trail": trail.format(**moments), **fields})})
    return call_id


async def test_a_retried_call_shows_each_attempt(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """With its outcome and worker, and the wait between them; the same stands in rows for who sees no bars."""
    call = ToolCall(tool_name="owls.garble_read", arguments={"text": "secret hoo"})
    result = await fleet.call(call, BOB)
    page = await page_when(gateway, str(result.audit.call_id), "Attempt 2")

    assert result.audit.attempts == 2
    shown = [bar for bar in bars(page) if bar not in {"claimed", "module"}]
    assert shown == ["queued", "attempt", "retry", "attempt", "stored"]
    for text in ("Attempt 1", "Waited for its retry", "Result stored and announced", str(result.audit.worker)):
        assert text in page.text
    assert "secret hoo" not in page.html


@pytest.mark.parametrize(
    ("trail", "fields", "shown", "said"),
    [
        (
            "lost 1 {t2} {t5} {t12} fast@a owl-1;attempt 2 {t14} 500 {t20} success fast@b owl-2;",
            {"replica": "owl-2", "queued_ms": 1400},
            ["queued", "lost", "reclaim", "attempt", "module", "stored"],
            [
                "its worker was lost",
                "fast@a, at owl-1",
                "fast@b, at owl-2",
                "Waited until another worker might have it",
            ],
        ),
        (
            "accepted 1 {t2} 50 {t3} fast@a -;attempt 1 {t19} 1750 {t20} success fast@b -;",
            {"polls": 7, "attempts": 1, "duration_ms": 1750, "queued_ms": 50},
            ["queued", "attempt", "accepted", "stored"],
            ["Its module went on with it", "asked 7 times"],
        ),
        (
            "asked 1 {t2} 50 {t3} fast@a -;answered 1 {t9};attempt 1 {t14} 500 {t20} success fast@b -;",
            {"attempts": 1, "queued_ms": 1300},
            ["queued", "attempt", "input", "queued", "attempt", "module", "stored"],
            ["Waited for an answer"],
        ),
    ],
    ids=["lost", "accepted", "asked"],
)
async def test_a_call_shows_what_has_happened_to_it(
    gateway: KeyedGateway, redis: Redis, trail: str, fields: dict[str, Any], shown: list[str], said: list[str]
) -> None:
    """An attempt whose worker was lost, a call that its module went on with, and one that asked something."""
    page = await page_when(gateway, await planted(redis, trail, **fields), said[0])

    assert [bar for bar in bars(page) if bar != "claimed"] == shown
    assert [text for text in said if text not in page.text] == []


async def test_a_call_that_people_approved_shows_their_time(gateway: KeyedGateway) -> None:
    """While it waits, that goes on; afterwards the page has how long it took, with what was decided beside it."""
    asks = {"tool_name": "owls.feed", "arguments": {"n": 1, "pin": "1234"}}
    call_id = (await gateway.post("bob", "/calls", asks)).json()["call_id"]
    asked_at = time.monotonic()
    waiting = await page_when(gateway, call_id, "Waited for an approval")
    async with browsing(gateway, "ada") as browser:
        approval = await browser.get(f"/approvals/{call_id}")
        waited_ms = (time.monotonic() - asked_at) * 1000
        await browser.send(approval.form(call_id), decision="approve")
    page = await page_when(gateway, call_id, "Result stored")
    first = (await gateway.get("vera", f"/operations/calls/{call_id}")).json()["spans"][0]

    assert (first["phase"], first["ends"] - first["begins"] >= waited_ms - 10) == ("approval", True)
    assert (bars(waiting), "goes on" in waiting.text) == (["approval"], True)
    assert [bar for bar in bars(page) if bar != "claimed"] == ["approval", "queued", "attempt", "module", "stored"]
    assert took_ms(page, "approval") >= waited_ms - 10  # as exact as seconds are shown
    assert f"/console/approvals/{call_id}" in page.links
    assert "What was decided" in page.text
    assert "1234" not in page.html


async def test_a_running_call_shows_who_has_it(gateway: KeyedGateway) -> None:
    """Since when, and that it goes on."""
    nap = {"tool_name": "owls.nap", "arguments": {"seconds": 5}}
    async with gateway.client("bob") as client:
        begun = await client.post("/calls", json=nap, headers={"prefer": "respond-async"})
    call_id = begun.json()["call_id"]
    page = await page_when(gateway, call_id, "goes on")
    await gateway.delete("bob", f"/calls/{call_id}")

    assert bars(page) == ["attempt"]
    assert "Attempt 1" in page.text
    assert re.search(r"\w+@[\w.-]+", page.text)


@pytest.mark.parametrize("trail", ["no trail", "<script>alert(1)</script>;" * 50, "attempt 1 9 9 9 <b>x</b> y z;"])
async def test_a_trail_of_somebody_elses_making_breaks_nothing(gateway: KeyedGateway, redis: Redis, trail: str) -> None:
    """What cannot be read is left out, and what can be is text."""
    page = await page_when(gateway, await planted(redis, trail, worker="<b>w</b>"), "Result stored")

    assert "<script>alert" not in page.html
    assert "<b>" not in page.html


async def test_an_admin_sees_arguments_and_result(gateway: KeyedGateway, redis: Redis) -> None:
    """Where they are kept; a viewer is told where that is set."""
    call_id = await planted(redis, "")
    said = {"owner": None, "arguments": '{"q": "<b>hoo</b>"}', "result": '"an answer"', "cut": ["result"]}
    await redis.set(Keys().contents(call_id), json.dumps(said), ex=60)
    seen = await page_when(gateway, call_id, "TOOLFLEET_CALL_CONTENTS")
    async with browsing(gateway, "ada") as browser:
        shown = await browser.get(f"/calls/{call_id}")

    assert "an answer" not in seen.text
    assert "&lt;b&gt;hoo&lt;/b&gt;" in shown.html
    assert "an answer" in shown.text
    assert "Result, the first 16 KiB" in shown.text
    assert "TOOLFLEET_CALL_CONTENTS" not in shown.text
