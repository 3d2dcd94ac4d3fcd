"""What a gateway answers while its Redis is away, and afterwards."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.streams.tcp_proxy import tcp_proxy
from support.waiting import wait_until, wait_until_answered

UNKNOWN = "00000000-0000-4000-8000-000000000000"
ECHO = {"tool_name": "owls.echo", "arguments": {"text": "hoo"}, "timeout_seconds": 3}


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    with serve(make_module("owls")) as module:
        yield module


REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/calls", ECHO),
    ("GET", f"/calls/{UNKNOWN}", None),
    ("GET", "/jobs", None),
    ("GET", "/approvals", None),
    ("GET", "/operations/status", None),
    ("GET", "/operations/dead-letters", None),
    ("GET", "/operations/audit", None),
    ("GET", "/operations/keys", None),
    ("GET", "/operations/queues", None),
    ("POST", "/operations/queues/owls", {"action": "pause"}),
]
"""What cannot be answered without Redis."""

UNCHANGING = REQUESTS[:-1]
"""Those that leave all as it is."""


async def ask(client: httpx.AsyncClient, method: str, path: str, body: Any) -> httpx.Response:
    headers = {"prefer": "wait=5"} if path == "/calls" else {}
    options = {} if body is None else {"json": body}
    return await client.request(method, path, headers=headers, **options)


async def until_ready(client: httpx.AsyncClient, status: int) -> None:
    async def is_so() -> bool:
        return (await client.get("/readyz")).status_code == status

    await wait_until_answered(is_so, f"it answers {status}")


def outage_of(redis: FaultyRedis, kind: str) -> AbstractContextManager[None]:
    return redis.frozen() if kind == "frozen" else redis.restarted()


async def check_away(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await until_ready(client, 503)
        assert (await client.get("/livez")).status_code == 200
        answers = await asyncio.gather(*(ask(client, *each) for each in REQUESTS))
    said = [
        (answer.request.url.path, answer.status_code, answer.json().get("error_code"), "retry-after" in answer.headers)
        for answer in answers
    ]
    assert said == [(path, 503, "fleet_unavailable", True) for _, path, _ in REQUESTS]
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}


@pytest.mark.parametrize("kind", ["frozen", pytest.param("killed", marks=pytest.mark.slow)])
async def test_without_redis_nothing_hangs_and_all_comes_back(owls: ModuleServer, tmp_path: Path, kind: str) -> None:
    """It lives, and is not ready; what needs Redis is a problem that says when to come again. Afterwards calls work at once."""
    with faulty_redis(tmp_path / "redis") as redis:
        bed = TestBed(redis.url, (owls,), tmp_path)
        with bed.worker(), gateway_process(bed) as gateway:
            async with gateway.client() as client:
                assert (await ask(client, "POST", "/calls", ECHO)).json()["success"]
                with outage_of(redis, kind):
                    await check_away(gateway)
                await until_ready(client, 200)

                async def is_back() -> bool:
                    return bool((await ask(client, "POST", "/calls", ECHO)).json().get("success"))

                await wait_until_answered(is_back, "the worker is back as well")
            assert "Traceback" not in gateway.process.said()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frozen", "killed"])
async def test_who_asks_when_redis_is_back_is_answered(owls: ModuleServer, tmp_path: Path, kind: str) -> None:
    """At the first try, whatever was asked in vain meanwhile, and however long it was away."""
    with faulty_redis(tmp_path / "redis") as redis:
        bed = TestBed(redis.url, (owls,), tmp_path)
        with bed.worker(), gateway_process(bed) as gateway:
            async with gateway.client() as client:
                before = await statuses(client)
                for seconds in (0.3, 1.1, 2.1, 3.2, 5.2):
                    with outage_of(redis, kind):
                        asking = [asyncio.create_task(ask(client, *each)) for each in UNCHANGING]
                        await until_over(client, seconds)
                    assert await statuses(client) == before, seconds
                    await asyncio.gather(*asking)


async def until_over(client: httpx.AsyncClient, seconds: float) -> None:
    """Ask whether the gateway is ready, for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                await client.get("/readyz")


async def statuses(client: httpx.AsyncClient) -> list[int]:
    """What everything is answered, all at once."""
    ready = client.get("/readyz")
    return [answer.status_code for answer in await asyncio.gather(ready, *(ask(client, *each) for each in UNCHANGING))]


@pytest.mark.slow
async def test_no_client_is_sent_to_a_call_that_redis_has_not_confirmed(owls: ModuleServer, tmp_path: Path) -> None:
    """The connection ends while the call is sent, and none stands for a while: come again, with the same key."""
    with faulty_redis(tmp_path / "redis") as redis, tcp_proxy(urlsplit(redis.url).port or 0) as proxy:
        bed = TestBed(f"redis://127.0.0.1:{proxy.port}/0", (owls,), tmp_path)
        with gateway_process(bed) as gateway:
            async with gateway.client() as client:
                await until_ready(client, 200)
                headers = {"prefer": "respond-async", "idempotency-key": "once"}
                call = {**ECHO, "timeout_seconds": 60}
                proxy.hold()
                posting = asyncio.create_task(client.post("/calls", json=call, headers=headers))
                await wait_until(lambda: proxy.holds(b"owls.echo"), "it is sent, and not answered")
                assert not posting.done()
                proxy.reset()
                answer = await posting
                proxy.release()
                await until_ready(client, 200)
                repeat = await client.post("/calls", json=call, headers=headers)
                seen = await client.get(repeat.headers["location"])

    assert (answer.status_code, answer.json()["effect_state"]) == (503, "unknown")
    assert "retry-after" in answer.headers
    assert (repeat.status_code, seen.status_code) == (202, 200)
