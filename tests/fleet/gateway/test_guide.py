"""The programs of the guides to the gateway do what they say, letter for letter."""

import asyncio
import json
import os
import shutil
import sys
from typing import Any

import httpx
import pytest

from support.documents import programs
from support.gateways.gateway_process import Gateway
from support.module_server import ModuleServer, holding
from support.waiting import PATIENCE_SECONDS

CALLS = programs("docs/guides/gateway.md")
JOBS = programs("docs/guides/jobs.md")
CLIENTS = programs("docs/guides/mcp-clients.md")
SHELL = ("sh", "-euc")
PYTHON = (sys.executable, "-c")
SECONDS = 3 * PATIENCE_SECONDS

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def _started(gateway: Gateway, *command: str) -> asyncio.subprocess.Process:
    env = {**os.environ, "URL": gateway.url, "KEY": gateway.key, "no_proxy": "*"}
    return await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)


async def _printed(gateway: Gateway, *command: str) -> str:
    process = await _started(gateway, *command)
    async with asyncio.timeout(SECONDS):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


@needs_curl
async def test_curl_calls(here: httpx.AsyncClient, one: Gateway) -> None:
    """It prints the result."""
    result = json.loads(await _printed(one, *SHELL, CALLS["curl-call"]))

    assert (result["success"], result["result"]) == (True, {"text": "hello"})


@needs_curl
async def test_curl_follows(here: httpx.AsyncClient, one: Gateway, owls: ModuleServer) -> None:
    """It prints where the call is, twice, and then its end as an event."""
    async with asyncio.timeout(SECONDS):
        with holding(owls, "nap"):
            process = await _started(one, *SHELL, CALLS["curl-follow"])
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


@needs_curl
async def test_curl_cancels(here: httpx.AsyncClient, one: Gateway) -> None:
    """The state that it prints says so."""
    state = json.loads(await _printed(one, *SHELL, CALLS["curl-cancel"]))

    assert (state["state"], state["result"]["error_code"]) == ("done", "cancelled")


@needs_curl
async def test_curl_lists_tools(one: Gateway) -> None:
    """It prints the first page; asked again, nothing but 304."""
    page = json.loads(await _printed(one, *SHELL, CALLS["curl-tools"]))

    assert [tool["module"] for tool in page["tools"]] == ["owls", "owls"]
    assert page["count"] > 2
    assert await _printed(one, *SHELL, CALLS["curl-tools-again"]) == "304\n"


@needs_curl
async def test_curl_makes_a_job_and_hears_of_its_end(one: Gateway) -> None:
    """The completion is that of the job."""
    job = json.loads(await _printed(one, *SHELL, CALLS["curl-job"]))
    completion = json.loads((await _printed(one, *SHELL, CALLS["curl-completions"])).removeprefix("data: "))

    assert completion["job_id"] == job["job_id"]
    assert completion["result"] == {"text": "hoo"}


async def test_python_ends_a_job_by_its_hook(one: Gateway) -> None:
    """The job has completed."""
    assert await _printed(one, *PYTHON, JOBS["python-hook"]) == "completed\n"


@needs_curl
async def test_curl_shows_the_status(one: Gateway) -> None:
    """It prints the lanes."""
    status = json.loads(await _printed(one, *SHELL, CALLS["curl-status"]))
    assert [lane["lane"] for lane in status["lanes"]] == ["fast", "slow"]


async def test_an_mcp_client_lists_and_calls(one: Gateway) -> None:
    """It prints how many tools there are, and what the call has returned."""
    tools, result = (await _printed(one, *PYTHON, CLIENTS["mcp-client"])).splitlines()
    assert tools.endswith("tools")
    assert result == "{'text': 'hello'}"
