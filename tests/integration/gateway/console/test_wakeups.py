"""The pages of wake-ups: chosen by a filter, tried and dropped, one or all; and what a job and a conversation say of their own."""

import uuid
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.console.plain_browser import browsing
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from support.workers.wakes import put
from toolfleet_registry.redis.keys import Keys


@pytest.fixture
async def redis(bed: TestBed) -> AsyncIterator[Redis]:
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        yield redis


@pytest.fixture
def talk() -> str:
    return f"talk-{uuid.uuid4().hex}"


async def waiting(redis: Redis, talk: str, count: int) -> list[str]:
    """Wake-ups of the conversation, which are not due soon."""
    wake_ids = [f"{talk}-{number:03}" for number in range(count)]
    for wake_id in wake_ids:
        await put(redis, wake_id, conversation_id=talk, job_id=wake_id, since=100)
        later = (await redis.time())[0] + 3600
        await redis.zadd(Keys().wakes_due, {wake_id: later * 1000})
    return wake_ids


async def job_ended(gateway: KeyedGateway, redis: Redis, talk: str) -> str:
    """The id of a job of the conversation."""
    later = {"schedule": {"delay_seconds": 3600}, "conversation": {"conversation_id": talk}}
    job_id = str((await gateway.post("bob", "/jobs", later)).json()["job_id"])
    await put(redis, job_id, conversation_id=talk, job_id=job_id, since=100)
    await redis.zadd(Keys().wakes_due, {job_id: ((await redis.time())[0] + 3600) * 1000})
    return job_id


async def test_one_is_dropped_and_its_job_says_so(gateway: KeyedGateway, redis: Redis, talk: str) -> None:
    """Once; its job and its conversation say by whom; the audit has a line, and a second drop finds nothing."""
    job_id = await job_ended(gateway, redis, talk)
    async with browsing(gateway, "olga") as browser:
        listed = await browser.get(f"/wake-ups?about={talk}")
        page = await browser.get(f"/wake-ups/{job_id}")
        after = await browser.send(page.form(job_id, action="drop"))
        again = await browser.post(f"/wake-ups/{job_id}", {"action": "drop", "csrf": await browser.csrf()})
    async with browsing(gateway, "vera") as browser:
        job = await browser.get(f"/jobs/{job_id}")
        conversation = await browser.get("/conversation", params={"id": talk, "user": "bob"})
        audit = await browser.get(f"/audit?tool={job_id}&changes=true")
    await gateway.delete("bob", f"/jobs/{job_id}")

    assert f"/console/wake-ups/{job_id}" in listed.links
    assert f"/console/jobs/{job_id}" in page.links
    assert f"Dropped {job_id}." in after.text
    assert again.status_code == 404
    by = f"by olga (key {gateway.key_id('olga')})"
    for shown in (job, conversation):
        assert "dropped" in shown.text
        assert by in shown.text
    assert "wakeup_dropped" in audit.text


@pytest.mark.parametrize("action", ["replay", "drop"])
async def test_all_of_a_filter_are_handled_with_progress(
    gateway: KeyedGateway, redis: Redis, talk: str, action: str
) -> None:
    """Some at a time, from page to page as a browser without scripts goes; what comes meanwhile, and others, stay."""
    wake_ids = await waiting(redis, talk, 450)
    (other,) = await waiting(redis, f"other-{uuid.uuid4().hex}", 1)
    async with browsing(gateway, "olga") as browser:
        listed = await browser.get(f"/wake-ups?about={talk}&kind=continue&minutes=1")
        page = await browser.send(listed.form("/bulk", action=action))
        first, steps = page.text, 1
        await put(redis, f"{talk}-late", conversation_id=talk)
        while any(form.action.endswith("/bulk") for form in page.forms):
            page, steps = await browser.send(page.form("/bulk")), steps + 1
        left = await browser.get(f"/wake-ups?about={talk}&limit=10")
    scores = [await redis.zscore(Keys().wakes_due, wake_id) for wake_id in wake_ids]
    kept = await redis.zscore(Keys().wakes_due, other)
    await redis.zrem(Keys().wakes_due, other, f"{talk}-late", *wake_ids)

    assert ("200 of 450:" in first, steps) == (True, 3)
    assert "450 of 450:" in page.text
    assert "That is all of them." in page.text
    assert kept is not None
    if action == "drop":
        assert set(scores) == {None}
        assert "1 in all" in left.text
    else:
        soon = ((await redis.time())[0] + 600) * 1000
        assert all(score is None or score < soon for score in scores)


async def test_a_viewer_is_shown_no_button(gateway: KeyedGateway, redis: Redis, talk: str) -> None:
    """And a dead one is dropped where the dead letters are."""
    (wake_id,) = await waiting(redis, talk, 1)
    async with browsing(gateway, "vera") as browser:
        pages = [await browser.get(f"/wake-ups?about={talk}"), await browser.get(f"/wake-ups/{wake_id}")]
        refused = await browser.post(f"/wake-ups/{wake_id}", {"action": "drop", "csrf": await browser.csrf()})
    left = await redis.zscore(Keys().wakes_due, wake_id)
    await redis.zrem(Keys().wakes_due, wake_id)

    assert not [form for page in pages for form in page.forms if "wake-ups" in form.action and form.fields.get("csrf")]
    assert (refused.status_code, left is not None) == (403, True)
