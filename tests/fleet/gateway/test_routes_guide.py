"""The programs of the guide to the gateway's other routes do what it says, letter for letter."""

import asyncio
import json
import os
import shutil
import sys

import pytest

from support.documents import programs
from support.gateways.gateway_process import Gateway
from support.waiting import PATIENCE_SECONDS

GUIDE = programs("docs/guides/gateway-routes.md")

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def _run(program: str, gateway: Gateway) -> str:
    return await _printed(gateway, "sh", "-euc", program)


async def _printed(gateway: Gateway, *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "URL": gateway.url, "KEY": gateway.key, "no_proxy": "*"},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def test_curl_lists_tools(one: Gateway) -> None:
    """It prints the first page."""
    page = json.loads(await _run(GUIDE["curl-tools"], one))

    assert [tool["module"] for tool in page["tools"]] == ["owls", "owls"]
    assert page["count"] > 2


async def test_curl_asks_again_and_gets_nothing(one: Gateway) -> None:
    """It prints 304."""
    assert await _run(GUIDE["curl-tools-again"], one) == "304\n"


async def test_curl_makes_a_job_and_hears_of_its_end(one: Gateway) -> None:
    """The completion is that of the job."""
    job = json.loads(await _run(GUIDE["curl-job"], one))
    completion = json.loads((await _run(GUIDE["curl-completions"], one)).removeprefix("data: "))

    assert completion["job_id"] == job["job_id"]
    assert completion["result"] == {"text": "hoo"}


async def test_python_ends_a_job_by_its_hook(one: Gateway) -> None:
    """The job has completed."""
    assert await _printed(one, sys.executable, "-c", GUIDE["python-hook"]) == "completed\n"


async def test_curl_shows_the_status(one: Gateway) -> None:
    """It prints the lanes."""
    assert [lane["lane"] for lane in json.loads(await _run(GUIDE["curl-status"], one))["lanes"]] == ["fast", "slow"]
