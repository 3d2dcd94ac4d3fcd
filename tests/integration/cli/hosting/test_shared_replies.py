"""Hosts that share what became of calls: another process answers for one that was killed, and says nothing twice."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from support.hosts.host_process import folder_host_process
from support.hosts.tool_folder import becomes
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import AnnouncedModule, Replica
from toolfleet_registry.settings import Settings

JOURNAL = '''
import pathlib
from toolfleet.sdk import tool

@tool(effect="once")
def hoot(day: int) -> str:
    """Hoot, and write it down."""
    with (pathlib.Path(r"FOLDER") / "journal").open("a") as journal:
        journal.write(f"{day}\\n")
    return f"hoot {day}"
'''


async def replicas_of(directory: ModuleDirectory, count: int) -> list[Replica]:
    """The hosts, once there are so many."""
    found = list[Replica]()

    async def are_there() -> bool:
        entry = (await directory.read()).entries.get("owls")
        found[:] = entry.replicas if isinstance(entry, AnnouncedModule) else []
        return len(found) == count

    await becomes(are_there, f"{count} hosts are there")
    return found


async def asked(replica: Replica, path: str, key: str, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=httpx.Timeout(None)) as client:
        headers = {"Idempotency-Key": key, "Toolfleet-Replica": replica.id, "Toolfleet-Time-Left-Ms": "20000"}
        answer = await client.post(f"{replica.url}{path}", json=body, headers=headers)
        found: dict[str, Any] = answer.json()
        return found


@pytest.mark.parametrize("shares", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["shared", "each its own"])
async def test_another_host_answers_for_one_that_was_killed(
    redis: Redis, redis_url: str, tmp_path: Path, shares: bool
) -> None:
    """If it shares the store, and says so; else the result is lost, and both say that they have no common one."""
    (tmp_path / "owls").mkdir()
    (tmp_path / "owls" / "hoot.py").write_text(JOURNAL.replace("FOLDER", str(tmp_path)))
    directory = ModuleDirectory(redis, Settings())
    env = {
        "TOOLFLEET_REDIS_URL": redis_url,
        "TOOLFLEET_HOST_REPLIES_IN_REDIS": str(shares),
        "TOOLFLEET_TOOL_SECURITY": "off",
    }
    hoot = {"tool_name": "owls.hoot", "arguments": {"day": 3}}
    with folder_host_process(tmp_path / "owls", env=env) as one:
        (first,) = await replicas_of(directory, 1)
        with folder_host_process(tmp_path / "owls", env=env):
            second = next(each for each in await replicas_of(directory, 2) if each.id != first.id)
            assert (first.has_shared_store, second.has_shared_store) == (shares, shares)

            assert (await asked(first, "/execute", "call-1", **hoot))["success"]
            os.kill(one.process.pid, signal.SIGKILL)
            became = await asked(second, "/reconcile", "call-1", call_id="call-1")
            assert became.get("result") == ("hoot 3" if shares else None)
            assert became["state"] == ("done" if shares else "unknown")
            if shares:
                assert (await asked(second, "/execute", "call-1", **hoot))["result"] == "hoot 3"
                other = await asked(second, "/reconcile", "call-2", call_id="call-2")
                assert other["state"] == "unknown", "Redis has not run for as long as a call may"
    assert (tmp_path / "journal").read_text() == "3\n"
