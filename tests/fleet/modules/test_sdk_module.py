"""A module that is written with the SDK, behind a real worker."""

import asyncio
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.sdk_program import running
from support.servers.plain_http import PLAIN
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Progress, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.messages.signing import module_key

# All of these are times in Redis, too, which takes whole seconds there.
FRACTIONS = {
    "result_ttl_seconds": 3600.5,
    "refresh_interval_seconds": 1200.5,
    "default_timeout": 29.5,
    "module_timeouts": {"owls": 29.5},
}
KEY = "a secret of more than thirty-two characters"


@contextmanager
def signed_fleet(folder: Path) -> Generator[TestBed]:
    """A fleet that signs, and a module that has its key and writes its journal in the folder."""
    logs = folder / "logs"
    logs.mkdir()
    replies, key = folder / "replies.db", module_key(KEY, "owls")
    with redis_server(folder / "redis") as url, running(folder, replies=replies, key=key) as server:
        owls = ModuleServer("owls", url=server.url)
        yield TestBed(url, (owls,), logs, {"visibility_timeout": 2.5, "signing_key": KEY, **FRACTIONS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def bed(folder: Path) -> Iterator[TestBed]:
    """One with a worker, for all tests that end neither; each writes names of its own."""
    with signed_fleet(folder) as bed, bed.worker():
        yield bed


def journal(folder: Path) -> list[str]:
    path = folder / "journal"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.usual
async def test_the_tool_hears_who_calls_and_how_long(bed: TestBed, owner: Caller) -> None:
    """From the fleet's token and headers."""
    async with ToolFleet(settings=bed.settings) as fleet:
        result = await fleet.call(ToolCall(tool_name="owls.told"), owner, timeout=20)

    left = result.result.pop("seconds_left")
    assert 0 < left < 21  # on the fleet's clock, which processes know to a second
    assert result.result == {"user_id": "ada", "permission": "owner", "call_id": result.audit.call_id}


@pytest.mark.parametrize("kind", ["busy", "passing"])
async def test_a_second_attempt_runs_what_the_first_did_not_do(
    bed: TestBed, folder: Path, owner: Caller, kind: str
) -> None:
    """One that was turned away, and a failure that says that a repeat may help: the same call id does not stand in its way."""
    call = ToolCall(tool_name="owls.second_time", arguments={"name": kind, "kind": kind})
    async with ToolFleet(settings=bed.settings) as fleet:
        result = await fleet.call(call, owner, timeout=20)

    assert result.result == kind, result
    assert result.audit.attempts == 2
    assert journal(folder).count(kind) == 2


async def test_a_second_attempt_joins_what_the_first_began(tmp_path: Path, owner: Caller) -> None:
    """The worker dies, and another one comes with the same call while the module is still at it: it runs once."""
    thread = ToolCall(tool_name="owls.thread", arguments={"name": "a"})
    with signed_fleet(tmp_path) as bed:
        async with ToolFleet(settings=bed.settings) as fleet:
            with bed.worker() as doomed:
                handle = await fleet.submit(thread, owner, timeout=60)
                await wait_until(lambda: journal(tmp_path), "the module has the call")
                doomed.send_signal(signal.SIGKILL)
            with bed.worker():
                (tmp_path / "go").touch()
                result = await handle.result(2 * PATIENCE_SECONDS)

    assert result.result == "a", result
    assert journal(tmp_path) == ["a"]


async def test_progress_reaches_the_caller(bed: TestBed, folder: Path, owner: Caller) -> None:
    """From `context.progress` through the worker, while the tool is still at it."""
    read = ToolCall(tool_name="owls.read", arguments={"name": "read", "wait": True})
    async with ToolFleet(settings=bed.settings) as fleet, asyncio.timeout(2 * PATIENCE_SECONDS):
        handle = await fleet.submit(read, owner, timeout=20)
        heard = []
        async for progress in handle.progress():
            heard.append(progress)
            (folder / "go").touch()
        result = await handle.result(PATIENCE_SECONDS)

    assert heard == [Progress(fraction=0.5, message="written")]
    assert result.result == "read"


async def test_a_module_refuses_who_is_not_the_fleet(bed: TestBed) -> None:
    """Whoever reaches its port reads what it offers, and no more."""
    (owls,) = bed.modules
    async with httpx.AsyncClient(base_url=owls.url, trust_env=False, verify=PLAIN) as client:
        assert (await client.get("/manifest")).is_success
        assert (await client.post("/execute", json={"tool_name": "owls.told", "user_id": "ada"})).status_code == 403
        assert (await client.post("/reconcile", json={"call_id": "c"})).status_code == 403
