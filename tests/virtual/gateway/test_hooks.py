"""A job's hook, while the gateway that takes it dies, or Redis stands still: its sender repeats itself, and nothing is told twice."""

import asyncio
from typing import Any

import httpx
import pytest

from bed.fleet import Bed, Gateway, until
from support.gateways.event_streams import EventReader
from support.gateways.hook_requests import SECRET, signed

_BODY = b'{"success": true, "result": {"eggs": 3}}'
_JOBS = 20
_TALK = "talk"


@pytest.fixture
async def stays(bed: Bed) -> Gateway:
    """A gateway that lives on."""
    return await bed.gateway()


async def job_at(gateway: Gateway) -> str:
    """A job of the conversation that waits for its hook."""
    wish = {"hook": {"secrets": [SECRET]}, "conversation": {"conversation_id": _TALK}}
    async with gateway.client() as client:
        answer = await client.post("/jobs", json=wish)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


async def has_ended(gateway: Gateway, job_id: str) -> bool:
    async with gateway.client() as client:
        return bool((await client.get(f"/jobs/{job_id}")).json().get("state") == "completed")


async def heard_at(gateway: Gateway) -> list[Any]:
    """The jobs whose ends the conversation hears of, up to that of one which is ended now."""
    last, jobs = await job_at(gateway), list[Any]()
    assert (await deliver(gateway, last, delivery="last")).status_code == 200
    async with gateway.client() as client, client.stream("GET", f"/conversations/{_TALK}/completions") as answer:
        stream = EventReader(answer)
        while not jobs or jobs[-1] != last:
            jobs.append((await stream.next()).data["job_id"])
    return jobs[:-1]


async def deliver(gateway: Gateway, job_id: str, *, delivery: str = "msg_1") -> httpx.Response:
    async with gateway.client() as client:
        return await client.post(f"/hooks/{job_id}", content=_BODY, headers=signed(_BODY, delivery=delivery))


async def test_a_gateway_dies_while_it_takes_a_hook(bed: Bed, stays: Gateway) -> None:
    """At any of its writes, up to the answer. The sender repeats itself: each time the job has ended so, and is told of once."""
    jobs, had_ended, is_answered = list[str](), list[bool](), False
    while not is_answered:
        jobs.append(job_id := await job_at(stays))
        mortal = await bed.gateway()
        dead = mortal.site.die_at(len(jobs), 0)
        sending = asyncio.create_task(deliver(mortal, job_id))
        await asyncio.wait([sending, waiting := asyncio.create_task(dead.wait())], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        is_answered = sending.done() and sending.exception() is None
        if not is_answered:
            had_ended.append(await has_ended(stays, job_id))
            with pytest.raises(httpx.HTTPError):
                await sending
        again = [await deliver(stays, job_id) for _ in range(3)]
        assert {(answer.status_code, answer.text) for answer in again} == {(200, again[0].text)}
        assert again[0].json() == {"job_id": job_id, "state": "completed"}

    assert had_ended[0] is False
    assert had_ended[-1] is True
    assert await heard_at(stays) == jobs


async def test_redis_stands_still_while_a_hook_is_taken(bed: Bed, stays: Gateway) -> None:
    """Each request is answered within its time: it is done, or is to come again; whichever it was, the repeat says what is."""
    jobs = [await job_at(stays) for _ in range(_JOBS)]
    busy = stays.site.writes + _JOBS

    async def send(some: list[str]) -> list[httpx.Response]:
        return [await deliver(stays, job_id) for job_id in some]

    sending = [asyncio.create_task(send(jobs[each::4])) for each in range(4)]
    await until(lambda: stays.site.writes > busy, "some are done, and some are not", step=0)
    bed.redis.freeze()
    late = await deliver(stays, jobs[0])
    first = [answer for each in await asyncio.gather(*sending) for answer in each]
    bed.redis.thaw()
    again = [await _taken(stays, job_id) for job_id in jobs for _ in range(2)]

    assert late.status_code == 503
    assert {answer.status_code for answer in first} == {200, 503}
    assert all("retry-after" in answer.headers for answer in [late, *first] if answer.status_code == 503)
    assert {answer.json()["state"] for answer in again} == {"completed"}
    assert sorted(await heard_at(stays)) == sorted(jobs)


async def _taken(gateway: Gateway, job_id: str) -> httpx.Response:
    """Repeat it as a sender does, until it is no longer told to come again."""
    answer = await deliver(gateway, job_id)
    if answer.status_code == 503:
        await asyncio.sleep(float(answer.headers["retry-after"]))
        return await _taken(gateway, job_id)
    assert answer.status_code == 200, answer.text
    return answer
