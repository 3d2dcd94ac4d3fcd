"""The guide's programs do what it says, letter for letter."""

import asyncio
import json
import os
import shutil
from typing import Any

import httpx
import pytest

from support.documents import programs
from support.gateways.gateway_process import Gateway
from support.module_server import ModuleServer, holding
from support.waiting import PATIENCE_SECONDS

GUIDE = programs("docs/guides/gateway.md")

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def _started(program: str, gateway: Gateway) -> asyncio.subprocess.Process:
    env = {**os.environ, "URL": gateway.url, "KEY": gateway.key, "no_proxy": "*"}
    return await asyncio.create_subprocess_exec("sh", "-euc", program, env=env, stdout=asyncio.subprocess.PIPE)


async def _run(program: str, gateway: Gateway) -> str:
    process = await _started(program, gateway)
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def test_curl_calls(here: httpx.AsyncClient, one: Gateway) -> None:
    """It prints the result."""
    result = json.loads(await _run(GUIDE["curl-call"], one))

    assert (result["success"], result["result"]) == (True, {"text": "hello"})


async def test_curl_follows(here: httpx.AsyncClient, one: Gateway, owls: ModuleServer) -> None:
    """It prints where the call is, twice, and then its end as an event."""
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        with holding(owls, "nap"):
            process = await _started(GUIDE["curl-follow"], one)
            assert process.stdout is not None
            first, printed = await _next_state(process.stdout, "")
            second, printed = await _next_state(process.stdout, printed)
        printed += (await process.communicate())[0].decode()

    assert process.returncode == 0
    assert {first["state"], second["state"]} <= {"queued", "running"}
    events = [line for line in printed.splitlines() if line.startswith(("event:", "data:"))]
    assert events[-2] == "event: end"
    assert json.loads(events[-1].removeprefix("data: "))["result"] == "awake"


async def _next_state(output: asyncio.StreamReader, printed: str) -> tuple[dict[str, Any], str]:
    """The state that is printed next, and what is printed behind it by then."""
    while True:
        try:
            state, end = json.JSONDecoder().raw_decode(printed)
        except ValueError:  # it has not come, or not all of it
            piece = await output.read(2**16)
            assert piece, f"it has ended: {printed}"
            printed += piece.decode()
        else:
            return state, printed[end:]


async def test_curl_cancels(here: httpx.AsyncClient, one: Gateway) -> None:
    """The state that it prints says so."""
    state = json.loads(await _run(GUIDE["curl-cancel"], one))

    assert (state["state"], state["result"]["error_code"]) == ("done", "cancelled")
