"""The guide's programs do what it says, letter for letter."""

import asyncio
import json
import os
import shutil

import httpx
import pytest

from support.documents import programs
from support.gateways.gateway_process import Gateway

GUIDE = programs("docs/guides/gateway.md")

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def _run(program: str, gateway: Gateway) -> str:
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-euc",
        program,
        env={**os.environ, "URL": gateway.url, "KEY": gateway.key, "no_proxy": "*"},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def test_curl_calls(here: httpx.AsyncClient, one: Gateway) -> None:
    """It prints the result."""
    result = json.loads(await _run(GUIDE["curl-call"], one))

    assert (result["success"], result["result"]) == (True, {"text": "hello"})


async def test_curl_follows(here: httpx.AsyncClient, one: Gateway) -> None:
    """It prints where the call is, twice, and then its end as an event."""
    printed = await _run(GUIDE["curl-follow"], one)

    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(printed)
    second, end = decoder.raw_decode(printed, end)
    assert {first["state"], second["state"]} <= {"queued", "running"}
    events = [line for line in printed[end:].splitlines() if line.startswith(("event:", "data:"))]
    assert events[-2] == "event: end"
    assert json.loads(events[-1].removeprefix("data: "))["result"] == "awake"


async def test_curl_cancels(here: httpx.AsyncClient, one: Gateway) -> None:
    """The state that it prints says so."""
    state = json.loads(await _run(GUIDE["curl-cancel"], one))

    assert (state["state"], state["result"]["error_code"]) == ("done", "cancelled")
