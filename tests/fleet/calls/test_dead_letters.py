"""A call whose end nobody can know is kept for a person, who looks at it, runs it anew, or drops it."""

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from support.command import run
from support.fleet import TestBed
from support.module_server import ModuleServer, Request, serve
from support.waiting import wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.errors import NoSuchDeadLetter

PIN = "4711-0815"
PAY = ToolCall(tool_name="bank.pay", arguments={"to": "bob", "pin": PIN})
Start = Callable[[], WorkerProcess]


class Bank:
    """A module that pays, or, while it `hangs`, keeps whoever asks waiting."""

    def __init__(self) -> None:
        self.hangs = True
        self.module = ModuleServer("bank")
        parameters = [{"name": "to", "type": "string"}, {"name": "pin", "type": "string", "sensitive": True}]
        self.module.add("pay", self.pay, effect="once", parameters=parameters)

    async def pay(self, request: Request) -> dict[str, Any]:
        if self.hangs:
            await asyncio.Event().wait()
        return {"success": True, "result": f"paid {request['arguments']['to']}"}


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    with serve(bank.module):
        yield bank


@pytest.fixture
def bed(bank: Bank, tmp_path: Path) -> Iterator[TestBed]:
    """A fleet whose workers are taken for lost after two seconds."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with redis_server(tmp_path / "redis") as url:
        yield TestBed(url, (bank.module,), logs, {"visibility_timeout": 2})


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def start(bed: TestBed) -> Iterator[Start]:
    """Starts workers that stay until the test's end, however it goes."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(bed.worker())


async def dead(bed: TestBed, *words: str, code: int = 0, stdin: str = "") -> str:
    """What `toolfleet dead-letters …` prints."""
    env = environment_of(bed.settings)
    with patch.object(sys, "stdin", io.StringIO(stdin)):
        ended = await asyncio.to_thread(run, "dead", *words, env=env)
    assert ended.code == code, ended.err
    return ended.out


async def test_an_unknown_end_is_kept_and_can_be_replayed(
    bed: TestBed, fleet: ToolFleet, bank: Bank, owner: Caller, start: Start
) -> None:
    """It is listed, shown without its sensitive argument, and with that run once more, as a new call."""
    worker, call = start(), asyncio.create_task(fleet.call(PAY, owner))
    await wait_until(lambda: bank.module.running, "the module has the call")
    worker.process.kill()
    await wait_until(lambda: not bank.module.running, "its caller has gone")
    start()
    result = await call
    assert (result.error_code, result.effect_state) == ("outcome_unknown", "unknown")
    call_id = result.audit.call_id

    (row,) = (await dead(bed, "list")).splitlines()[1:]
    assert row.split()[:5] == [call_id, "call", "bank.pay", "for", "ada"]
    shown = await dead(bed, "show", call_id)
    assert "attempt 1: never closed" in shown
    assert "effect: once" in shown
    assert '"to": "bob"' in shown
    assert '"pin": "[redacted]"' in shown
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        assert PIN not in json.dumps(await redis.hgetall("toolfleet:dead"))

    bank.hangs = False
    assert await dead(bed, "replay", call_id, "to=eve", code=1) == ""
    again = json.loads(await dead(bed, "replay", call_id, "--args", "-", "--json", stdin=json.dumps({"pin": PIN})))
    assert (again["success"], again["result"]) == (True, "paid bob")
    assert again["audit"]["call_id"] != call_id
    assert [request["arguments"] for request in bank.module.calls("pay")] == [PAY.arguments] * 2
    assert await fleet.dead_letters.list() == []


def test_a_program_without_an_event_loop_has_them_too(bed: TestBed) -> None:
    """The same methods on `ToolFleet.sync()`."""
    with ToolFleet.sync(settings=bed.settings) as fleet:
        assert fleet.dead_letters.list(10, 0) == []
        assert fleet.dead_letters.drop("call-1") == ()
        assert fleet.dead_letters.drop_all() == 0
        with pytest.raises(NoSuchDeadLetter):
            fleet.dead_letters.show("call-1")
        with pytest.raises(NoSuchDeadLetter):
            fleet.dead_letters.replay("call-1", arguments={})
