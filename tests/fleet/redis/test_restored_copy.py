"""A fleet on a restored copy of Redis says what it knows, and runs nothing again that has run since the copy."""

import asyncio
import shutil
from pathlib import Path

import pytest
from redis import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import wait_until, wait_until_sync
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import free_port, redis_command, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks.calls.begun_calls import Owner

ADA = Owner("ada")
CALL_SECONDS = 30.0


async def begun(fleet: ToolFleet, caller: Caller, tool: str, **arguments: object) -> str:
    call = ToolCall(tool_name=tool, arguments=arguments)
    handle = await fleet.begun_calls.begin(call, caller, ADA, timeout=CALL_SECONDS)
    assert handle.refusal is None, handle.refusal
    assert await handle.is_kept_within(20)
    return handle.id


async def ended(fleet: ToolFleet, call_id: str) -> ToolResult | None:
    """How the call has ended, asked by a process that did not begin it; `None` for one that is not known."""
    handle = await fleet.begun_calls.attach(call_id, ADA)
    return None if handle is None else await handle.end_within(2 * CALL_SECONDS)


async def succeeded(fleet: ToolFleet, call_id: str) -> None:
    result = await ended(fleet, call_id)
    assert result is not None
    assert result.success, result


def restored(copy: Path, folder: Path) -> None:
    """What `docs/operations/redis.md` says: read the copy, forget what waits and the data's name, write the append-only file."""
    folder.mkdir()
    shutil.copy(copy, folder / "dump.rdb")
    port = free_port()
    process = spawn([*redis_command(folder, port), "--appendonly", "no"])
    try:
        with Redis(port=port, decode_responses=True) as redis:
            wait_until_sync(lambda: answers(redis), "Redis has read the copy")
            redis.delete("toolfleet:data-id", "unacked", "unacked_index")
            for queue in redis.scan_iter("tools.*"):
                redis.delete(queue)
            redis.config_set("appendonly", "yes")
            wait_until_sync(lambda: is_written(redis), "the append-only file is written")
    finally:
        stop(process, patience_seconds=10)


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except Exception:  # noqa: BLE001 - it is starting, or reading
        return False


def is_written(redis: Redis) -> bool:
    info = redis.info("persistence")
    return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]


@pytest.mark.slow
async def test_nothing_runs_twice_after_a_copy_is_restored(owls: ModuleServer, owner: Caller, tmp_path: Path) -> None:
    """Of what ended before the copy it has the result. What ran or waited then is unknown, and what came later is not known."""
    logs, copy = tmp_path / "logs", tmp_path / "copy.rdb"
    logs.mkdir()
    with redis_server(tmp_path / "before") as url:
        bed = TestBed(url, (owls,), logs, {"worker_concurrency": 1})
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                before = await begun(fleet, owner, "owls.echo", text="hu")
                assert (await ended(fleet, before)) is not None
                running = await begun(fleet, owner, "owls.nap_once", seconds=2)
                await wait_until(lambda: running in owls.call_ids("nap_once"), "the first one runs")
                waiting = await begun(fleet, owner, "owls.nap_once", seconds=0)
                with Redis.from_url(url) as redis:
                    redis.save()
                shutil.copy(tmp_path / "before" / "dump.rdb", copy)
                assert waiting not in owls.call_ids("nap_once")
                for each in (running, waiting):
                    await succeeded(fleet, each)
                later = await begun(fleet, owner, "owls.nap_once", seconds=0.1)
                await succeeded(fleet, later)

    await asyncio.to_thread(restored, copy, tmp_path / "after")
    with redis_server(tmp_path / "after") as url:
        bed = TestBed(url, (owls,), logs)
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                kept = await ended(fleet, before)
                assert kept is not None
                assert kept.result == {"text": "hu"}
                assert await ended(fleet, later) is None
                found = await asyncio.gather(ended(fleet, running), ended(fleet, waiting))
                assert [each and each.effect_state for each in found] == ["unknown", "unknown"]
                fresh = await fleet.call(ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0.2}), owner)
                assert fresh.success
    assert [owls.call_ids("nap_once").count(each) for each in (running, waiting, later)] == [1, 1, 1]
