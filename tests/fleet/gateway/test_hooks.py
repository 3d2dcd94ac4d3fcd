"""A job's hook, while the gateway that takes it is killed, or Redis stands still: its sender repeats itself, and nothing is told twice."""

import asyncio
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.event_streams import EventReader
from support.gateways.gateway_process import Gateway, gateway_process
from support.gateways.hook_requests import SECRET, signed
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.streams.tcp_proxy import TcpProxy, tcp_proxy
from support.waiting import wait_until
from toolfleet_registry.access.key_text import new_key_text

_BODY = b'{"success": true, "result": {"eggs": 3}}'
_SECONDS = 60
_JOBS = 20


@dataclass(frozen=True)
class Place:
    """Two gateways over one Redis: one that dies, whose way to Redis is `proxy`, and one that stays."""

    redis: FaultyRedis
    proxy: TcpProxy
    mortal: Gateway
    stays: Gateway

    async def job(self, talk: str) -> str:
        """A job of that conversation that waits for its hook."""
        wish = {"hook": {"secrets": [SECRET]}, "conversation": {"conversation_id": talk}}
        async with self.stays.client() as client:
            answer = await client.post("/jobs", json=wish)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    async def has_ended(self, job_id: str) -> bool:
        async with self.stays.client() as client:
            return bool((await client.get(f"/jobs/{job_id}")).json().get("state") == "completed")

    def pause_scripts(self) -> None:
        """Redis lets those wait that ask it to run a script: it may write."""
        self.redis.look.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")

    async def stop_at_the_end_of(self, job_id: str) -> None:
        """Let the gateway that dies run script after script, up to the one that ends the job: it does not hear of that."""
        while True:
            await wait_until(self._has_waiting_scripts, "the gateway goes on with the job")
            self.proxy.hold(there=False)
            self.redis.look.execute_command("CLIENT", "UNPAUSE")
            await wait_until(lambda: not self._has_waiting_scripts(), "the script has run")
            if await self.has_ended(job_id):
                return
            self.pause_scripts()
            self.proxy.release()

    def _has_waiting_scripts(self) -> bool:
        clients: list[dict[str, str]] = self.redis.look.client_list()
        return any(client["cmd"].startswith("eval") and "b" in client["flags"] for client in clients)

    async def heard(self, talk: str) -> list[Any]:
        """The jobs whose ends the conversation hears of, up to that of one which is ended now."""
        last, jobs = await self.job(talk), list[Any]()
        assert (await deliver(self.stays, last, delivery="last")).status_code == 200
        async with self.stays.client() as client, client.stream("GET", f"/conversations/{talk}/completions") as answer:
            stream = EventReader(answer)
            while not jobs or jobs[-1] != last:
                jobs.append((await stream.next()).data["job_id"])
        return jobs[:-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with _place(tmp_path) as place:
        yield place


@contextmanager
def _place(folder: Path) -> Generator[Place]:
    with ExitStack() as stack:
        redis = stack.enter_context(faulty_redis(folder / "redis"))
        proxy = stack.enter_context(tcp_proxy(urlsplit(redis.url).port or 0))
        env = {"TOOLFLEET_GATEWAY_KEY": new_key_text().text}
        behind = TestBed(f"redis://127.0.0.1:{proxy.port}/0", (), folder)
        stays = stack.enter_context(gateway_process(TestBed(redis.url, (), folder), env=env))
        mortal = stack.enter_context(gateway_process(behind, env=env))
        yield Place(redis, proxy, mortal, stays)


async def deliver(gateway: Gateway, job_id: str, *, delivery: str = "msg_1") -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=_SECONDS, trust_env=False) as client:
        return await client.post(f"/hooks/{job_id}", content=_BODY, headers=signed(_BODY, delivery=delivery))


async def test_a_gateway_is_killed_between_the_end_of_a_job_and_its_answer(place: Place) -> None:
    """The sender repeats itself at another gateway: the job has ended so, each time, and its conversation hears of it once."""
    talk = uuid.uuid4().hex
    job_id = await place.job(talk)
    place.pause_scripts()
    sending = asyncio.create_task(deliver(place.mortal, job_id))
    await place.stop_at_the_end_of(job_id)
    place.mortal.process.send_signal(signal.SIGKILL)
    with pytest.raises(httpx.HTTPError):
        await sending
    again = [await deliver(place.stays, job_id) for _ in range(3)]

    assert {(answer.status_code, answer.text) for answer in again} == {(200, again[0].text)}
    assert again[0].json() == {"job_id": job_id, "state": "completed"}
    assert await place.heard(talk) == [job_id]


@pytest.mark.slow
async def test_redis_stands_still_while_a_hook_is_taken(place: Place) -> None:
    """Each request is answered within its time: it is done, or is to come again; whichever it was, the repeat says what is."""
    talk = uuid.uuid4().hex
    jobs = [await place.job(talk) for _ in range(_JOBS)]
    sending = [asyncio.create_task(deliver(place.stays, job_id)) for job_id in jobs]
    await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
    with place.redis.frozen():
        late = await deliver(place.stays, jobs[0])
        first = await asyncio.gather(*sending)
    again = [await _until_taken(place.stays, job_id) for job_id in jobs for _ in range(2)]

    assert late.status_code == 503
    assert {answer.status_code for answer in first} == {200, 503}
    assert all("retry-after" in answer.headers for answer in [late, *first] if answer.status_code == 503)
    assert {answer.json()["state"] for answer in again} == {"completed"}
    assert sorted(await place.heard(talk)) == sorted(jobs)


async def _until_taken(gateway: Gateway, job_id: str) -> httpx.Response:
    """Repeated as a sender does, until it is no longer told to come again."""
    async with asyncio.timeout(_SECONDS):
        while (answer := await deliver(gateway, job_id)).status_code == 503:
            pass
    assert answer.status_code == 200, answer.text
    return answer
