"""What one call may take of an agent and a worker is bounded: the bytes of its arguments, its names, and the checks of its schemas."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer, Request, serve
from support.owls import echo
from support.schemas.hostile_schemas import HOSTILE
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

MOST = 2**20
LONG = "x" * 257
SCHEMA, REPLY = HOSTILE["multiples of a tiny number"]


async def count(request: Request) -> dict[str, Any]:
    return {"success": True, "result": REPLY}


@pytest.fixture(scope="module")
def cave() -> Iterator[ModuleServer]:
    module = ModuleServer("cave")
    module.add("echo", echo, effect="once")
    module.add("count", count, output_schema=SCHEMA, effect="read")
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def bed(cave: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (cave,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    # Shorter than the check of one such reply would take, and longer than a machine pauses.
    with bed.worker(constants={"toolfleet_workers.pool.bootsteps._STALL_SECONDS": 10}) as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess, cave: ModuleServer) -> AsyncIterator[ToolFleet]:
    cave.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def handmade(bed: TestBed, fleet: ToolFleet) -> Iterator[FleetCalls]:
    calls = FleetCalls(bed.settings)
    yield calls
    calls.close()


@pytest.mark.parametrize(
    ("fields", "user_id", "error"),
    [
        ({"arguments": {"x": "x" * MOST}}, None, f"Arguments have {MOST + 8} bytes as JSON; at most {MOST} can be sent."),
        ({"arguments": {"x": "é" * (MOST // 6)}}, None, f"Arguments have {MOST // 6 * 6 + 8} bytes as JSON; at most {MOST} can be sent."),
        ({"user_id": LONG}, None, "The user id has more than 256 characters."),
        ({}, LONG, "The user id has more than 256 characters."),
        ({"idempotency_key": LONG}, None, "The idempotency key has more than 256 characters."),
        ({"tool_version": LONG}, None, "The tool version has more than 256 characters."),
        ({"tool_version": LONG, "idempotency_key": "k"}, None, "The tool version has more than 256 characters."),
        ({"tool_version": ""}, None, "The tool version is empty; a call of whichever version leaves it out."),
    ],
    ids=["bytes", "escapes", "user", "caller", "key", "version", "version under a key", "no version"],
)  # fmt: skip
async def test_what_is_too_large_is_refused_before_it_is_published(
    fleet: ToolFleet, cave: ModuleServer, fields: dict[str, Any], user_id: str | None, error: str
) -> None:
    """With one error that says what to mend, and repeats nothing of it."""
    caller = Caller(user_id=user_id, permission="owner", allowed_modules="*")

    result = await fleet.call(ToolCall(tool_name="cave.echo", **fields), caller)

    assert (result.error_code, result.effect_state, result.error) == ("invalid_arguments", "none", error)
    assert cave.requests == []


async def test_as_much_as_may_be_is_sent(fleet: ToolFleet, cave: ModuleServer, owner: Caller) -> None:
    """To the last byte, and the last character of a name."""
    caller = owner.model_copy(update={"user_id": LONG[:256]})
    call = ToolCall(tool_name="cave.echo", arguments={"x": "x" * (MOST - 8)}, idempotency_key=LONG[:256])

    assert (await fleet.call(call, caller)).success


@pytest.mark.parametrize(
    "fields",
    [
        {"arguments": {"x": "x" * MOST}},
        {"arguments": {"x": "x" * 3 * MOST}},
        {"user_id": LONG},
        {"caller": Caller(user_id=LONG, permission="owner", allowed_modules="*")},
        {"idempotency_key": LONG},
        {"tool_version": LONG},
        {"tool_version": ""},
    ],
    ids=["bytes", "unread", "user", "caller", "key", "version", "no version"],
)
async def test_a_worker_refuses_what_no_agent_publishes(
    handmade: FleetCalls, cave: ModuleServer, fields: dict[str, Any]
) -> None:
    """Of a message that was made by hand the call ends as well, not executed."""
    call_id = handmade.publish("cave.echo", **fields)
    (result,) = await asyncio.to_thread(handmade.results, call_id)

    assert (result["error_code"], result["effect_state"]) == ("invalid_arguments", "none")
    assert cave.requests == []


async def test_a_module_cannot_stall_a_worker_with_its_schema_and_its_reply(
    fleet: ToolFleet, worker: WorkerProcess, owner: Caller
) -> None:
    """What cannot be checked in time passes with a warning: the call was executed, and others run meanwhile."""
    hostile = [fleet.call(ToolCall(tool_name="cave.count"), owner) for _ in range(3)]
    healthy = [fleet.call(ToolCall(tool_name="cave.echo", arguments={"n": n}), owner) for n in range(20)]

    results = await asyncio.gather(*hostile, *healthy)

    assert [result.success for result in results] == [True] * 23
    assert "result_not_checked" in worker.said()
    assert "loop_stalled" not in worker.said()
