"""A module whose calls hang, and how long the others wait that are served by the same worker."""

import asyncio
import time
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import Trickle, echo
from support.pace import at_rate
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
TRICKLING, USERS, ECHOES, ECHOES_A_SECOND = 1000, 7, 200, 40
WORST_SECONDS = 0.5


@pytest.mark.load
async def test_a_thousand_trickling_calls_delay_no_other_module(tmp_path: Path) -> None:
    """Of seven users, to a module that answers a byte a second: the worst call to another module takes under half a second."""
    callers = [Caller(user_id=f"user-{number}", permission="owner", allowed_modules="*") for number in range(USERS)]
    call, hold, took = ToolCall(tool_name="cats.echo"), ToolCall(tool_name="owls.trickle"), list[float]()
    owls, cats, trickle = ModuleServer("owls"), ModuleServer("cats"), Trickle()
    owls.add("trickle", trickle.answer, effect="once")
    cats.add("echo", echo, effect="read")
    (logs := tmp_path / "logs").mkdir()
    with redis_server(tmp_path / "redis") as url, serve(owls), serve(cats):
        bed = TestBed(url, (owls, cats), logs, {"worker_concurrency": TRICKLING})
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                assert (await fleet.call(call, ADA, timeout=20)).success
                trickling = [
                    await fleet.submit(hold, callers[number % USERS], timeout=60) for number in range(TRICKLING)
                ]
                await wait_until(lambda: trickle.count == TRICKLING, "all slots trickle", seconds=2 * PATIENCE_SECONDS)
                async for _ in at_rate(ECHOES_A_SECOND, ECHOES):
                    began_at = time.monotonic()
                    assert (await fleet.call(call, ADA, timeout=40)).success
                    took.append(time.monotonic() - began_at)
                assert trickle.count == TRICKLING, "they trickle still"
                await asyncio.gather(*(one.cancel() for one in trickling))

    print(f"p50 {sorted(took)[ECHOES // 2] * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")  # noqa: T201
    assert max(took) < WORST_SECONDS
