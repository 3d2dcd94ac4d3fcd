"""Calls that a program sends which has Celery, and nothing of Toolfleet."""

import ast
import asyncio
import os
import sys
from pathlib import Path

import pytest

from support.documents import programs
from support.fleet import TestBed
from support.module_server import ModuleServer
from toolfleet import ToolFleet

PROGRAM = programs("docs/guides/calling-tools.md")["celery"]


async def output_of(program: str, bed: TestBed, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        cwd=folder,
        env={**os.environ, "REDIS_URL": bed.redis_url},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return said.decode()


@pytest.mark.usual
async def test_a_plain_celery_application_calls_tools(bed: TestBed, fleet: ToolFleet, tmp_path: Path) -> None:
    """The guide's program prints what the tool returned, and why a name that is wrong was refused."""
    await fleet.modules.refresh()
    said = await output_of(PROGRAM, bed, tmp_path)

    echoed, refused = map(ast.literal_eval, said.splitlines())
    assert (echoed["success"], echoed["result"]) == (True, {"text": "hello"})
    assert (refused["success"], refused["error_code"]) == (False, "unknown_tool")


async def test_a_plain_message_that_is_sent_twice_runs_once(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, tmp_path: Path
) -> None:
    """The ledger knows a call by its id, whoever has sent it."""
    await fleet.modules.refresh()
    twice = PROGRAM.replace("    sent = ", "    for _ in range(2):\n        sent = ")
    await output_of(twice, bed, tmp_path)

    assert len(owls.call_ids("echo")) == 1
