"""A gateway stands below a path of its proxy, says whether it is ready, sends at once, and logs no secret."""

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.gateways.gateway_here import gateway_here
from support.gateways.gateway_process import LEAVE_SECONDS, Gateway, gateway_process
from support.gateways.raw_http import answer_to, request
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings
from toolfleet_registry.system.process import listening_socket


async def test_a_gateway_below_a_path(bed: TestBed) -> None:
    """A proxy takes the path off; the gateway knows it where it names a route."""
    with gateway_here(bed, gateway_root_path="/fleet") as gateway:
        async with gateway.client() as client:
            document, live = await client.get("/openapi.json"), await client.get("/livez")
            missing = await client.get("/calls/nothing")

    assert (document.status_code, live.status_code, missing.status_code) == (200, 200, 404)
    assert document.json()["servers"] == [{"url": "/fleet"}]
    assert missing.json()["instance"] == "/fleet/calls/nothing"


async def test_a_gateway_is_ready_while_redis_answers(tmp_path: Path, redis_url: str, redis: Redis) -> None:
    """With a Redis that is frozen it lives, and is not ready; afterwards it is again."""
    with gateway_here(TestBed(redis_url, (), tmp_path)) as gateway:
        async with gateway.client() as client:
            before = await client.get("/readyz")
            await redis.execute_command("CLIENT", "PAUSE", 5000, "ALL")
            during = await client.get("/readyz")
            alive = await client.get("/livez")
            while (after := await client.get("/readyz")).status_code != 200:
                pass

    assert (before.status_code, during.status_code, alive.status_code) == (200, 503, 200)
    assert during.json()["error_code"] == "fleet_unavailable"
    assert int(during.headers["retry-after"]) >= 1
    assert after.json() == {"status": "ok"}


async def test_a_gateway_that_ends_is_not_ready(bed: TestBed) -> None:
    """For a moment it takes requests still, so that a load balancer sees it; then it ends well."""
    with gateway_process(bed, constants={LEAVE_SECONDS: 3}) as gateway:
        async with gateway.client() as client:
            gateway.process.send_signal(signal.SIGTERM)
            while (answer := await client.get("/readyz")).status_code == 200:
                pass
            assert answer.status_code == 503
        assert gateway.process.wait() == 0


async def test_the_log_has_no_secret(strict: Gateway) -> None:
    """Neither a key in a header or a query, nor what a body says."""
    secrets = ("tfk_in_a_header", "tfk_in_a_query", "in a body")
    await answer_to(strict, request("POST", "/calls?token=tfk_in_a_query", key="tfk_in_a_header", body="in a body"))
    await answer_to(strict, request("POST", "/calls", key="tfk_in_a_header", body='"in a body"'))

    said = strict.process.said()
    assert "path=/calls" in said
    assert [secret for secret in secrets if secret in said] == []


async def test_what_a_server_writes_is_sent_at_once() -> None:
    """An event of a stream does not wait until the one before it is acknowledged."""
    sends_at_once = asyncio.get_running_loop().create_future()

    async def join(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        sends_at_once.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listening_socket("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(join, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await sends_at_once
            writer.close()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: listening_socket("192.0.2.1", 0), "Nothing can listen at 192.0.2.1"),
        (lambda: load_settings(gateway_root_path="fleet"), "must begin with"),
    ],
    ids=["address", "path"],
)
def test_a_gateway_that_cannot_be_says_why(ask: Callable[[], object], words: str) -> None:
    """Its address is one of this machine, and a path begins with a slash."""
    with pytest.raises(SettingsError, match=words):
        ask()
