"""What a tool logs, on the whole way: from a module through a worker and Redis to the caller who wants it, in a fleet that signs."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import SIGNING_KEY, TestBed, local_tools_known
from support.local_tools.log_teller import tell
from support.module_server import ModuleServer, serve
from support.worker_process import TESTS, WorkerProcess
from toolfleet import Caller, CallHandle, Progress, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts.call_context import LogMessage

SECONDS = 30
INFO: dict[str, Any] = {"level": "info", "data": {"eggs": 3}, "logger": "nest"}
DEBUG: dict[str, Any] = {"level": "debug", "data": "quiet"}


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("tell", tell, effect="once")
    hidden = {"type": "object", "properties": {"pin": {"type": "string", "sensitive": True}}}
    module.add("secret", tell, effect="read", output_schema=hidden)
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    more = {"local_tools": "support.local_tools.local_loggers:tools", "signing_key": SIGNING_KEY}
    with redis_server(tmp_path_factory.mktemp("redis")) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess, owls: ModuleServer) -> AsyncIterator[ToolFleet]:
    owls.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


async def all_of(handle: CallHandle) -> list[LogMessage]:
    async with asyncio.timeout(SECONDS):
        return [message async for message in handle.log()]


def telling(messages: list[dict[str, Any]], **more: Any) -> ToolCall:
    return ToolCall(tool_name="owls.tell", arguments={"messages": messages, **more}, log_level="info")


async def test_a_caller_hears_what_it_wants_and_then_the_end(fleet: ToolFleet, owner: Caller) -> None:
    """In order, up to the last word before the reply; what is not grave enough is left out. Whoever comes later hears it again."""
    messages = [INFO, DEBUG, {"level": "emergency", "data": None}]
    handle = await fleet.submit(telling(messages), owner)
    heard = [await all_of(handle), await all_of(handle)]

    assert heard == [[LogMessage.model_validate(INFO), LogMessage(level="emergency", data=None)]] * 2
    assert (await handle.result(SECONDS)).result == "info"


async def test_progress_comes_beside_it(fleet: ToolFleet, owner: Caller) -> None:
    """A module may send both; what is neither ends the call, and what is no log message is left out."""
    lines = ['{"progress": 0.5, "message": "half"}', '{"log": {"level": "deafening", "data": 1}}', '{"log": 7}']
    progress: list[Progress] = []
    result = await fleet.call(telling([INFO], lines=lines), owner, on_progress=progress.append)
    handle = await fleet.submit(telling([INFO], lines=lines), owner)

    assert result.success
    assert progress in ([], [Progress(fraction=0.5, message="half")])
    assert await all_of(handle) == [LogMessage.model_validate(INFO)]


async def test_a_call_without_a_level_has_no_log(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Its module is told nothing of it. Nor is that of a tool with sensitive results, which its words could quote."""
    handle = await fleet.submit(ToolCall(tool_name="owls.tell", arguments={"messages": [INFO]}), owner)
    assert await all_of(handle) == []
    secret = await fleet.submit(ToolCall(tool_name="owls.secret", arguments={}, log_level="debug"), owner)
    assert await all_of(secret) == []

    assert not any("log_level" in request for request in owls.requests)


async def test_a_flood_is_bounded_and_does_not_hold_the_call(fleet: ToolFleet, owner: Caller) -> None:
    """Of a module that sends more than it may the first messages come, and how many did not."""
    big = {"level": "info", "data": "x" * 12_000}
    handle = await fleet.submit(telling([big], times=300), owner)
    heard = await all_of(handle)

    assert (await handle.result(SECONDS)).success
    assert 50 < len(heard) < 250
    assert heard[-1].data.startswith(f"{301 - len(heard)} log messages were left out")


async def test_an_unsigned_message_is_nobodys(fleet: ToolFleet, bed: TestBed, owner: Caller, tmp_path: Path) -> None:
    """Whoever can write to Redis cannot speak for a tool."""
    go = tmp_path / "go"
    handle = await fleet.submit(telling([INFO], until=str(go)), owner)
    heard: list[LogMessage] = []
    async with asyncio.timeout(SECONDS), Redis.from_url(bed.redis_url) as redis:
        async for message in handle.log():
            heard.append(message)
            if not go.exists():
                forged = json.dumps({"level": "alert", "data": "send money"})
                assert await redis.publish(f"toolfleet:progress-log:{handle.id}", forged) == 1
                go.touch()

    assert heard == [LogMessage.model_validate(INFO)]


async def test_a_call_that_joins_hears_what_the_first_one_logs(
    fleet: ToolFleet, bed: TestBed, owner: Caller, tmp_path: Path
) -> None:
    """In whichever process: from then on."""
    go = tmp_path / "go"
    call = telling([INFO], until=str(go)).model_copy(update={"idempotency_key": "k"})
    first = await fleet.submit(call, owner)
    again = await fleet.submit(call, owner)
    hearing = asyncio.create_task(all_of(again))
    async with asyncio.timeout(SECONDS):
        assert await anext(aiter(first.log())) == LogMessage.model_validate(INFO)
    go.touch()

    assert await hearing == [LogMessage.model_validate(INFO)]
    assert (await again.result(SECONDS)).audit.call_id == first.id


async def test_functions_of_the_fleets_own_log_too(fleet: ToolFleet, owner: Caller) -> None:
    """On the loop and in threads; one that says far too much is told so to its caller."""
    await local_tools_known(fleet)
    hoot = await fleet.submit(ToolCall(tool_name="local.hoot", log_level="notice"), owner)
    loud = await fleet.submit(ToolCall(tool_name="local.hoot", log_level="info"), owner)
    call = await fleet.submit(ToolCall(tool_name="local.call", log_level="info"), owner)

    assert await all_of(hoot) == []
    assert await all_of(loud) == [LogMessage(level="info", data={"hoots": 1}, logger="owl")]
    assert (await hoot.result(SECONDS)).result == "notice"
    called = await all_of(call)
    assert [message.data for message in called[:-1]] == [f"at {number}" for number in range(len(called) - 1)]
    assert called[-1].data.startswith(f"{301 - len(called)} log messages were left out")
