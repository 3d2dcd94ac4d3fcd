"""A module whose calls hang, and the others that are served by the same worker."""

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.fleet import TestBed
from support.module_server import ModuleServer, Request, serve
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
SLOTS, HALF, BEYOND = 8, 4, 2
TRICKLING, USERS, ECHOES = 1000, 7, 200
WORST_SECONDS = 0.5


class Gate:
    """Calls that come in wait until it lets them go, the first ones first."""

    def __init__(self) -> None:
        self.came = self.passing = self.trickling = 0

    async def hold(self, request: Request) -> dict[str, Any]:
        number, self.came = self.came, self.came + 1
        while number >= self.passing:  # noqa: ASYNC110 - opened by another thread
            await asyncio.sleep(0.01)
        return {"success": True}

    async def trickle(self, request: Request) -> web.Response:
        return web.Response(body=self._byte_a_second(), content_type="application/json")

    async def _byte_a_second(self) -> AsyncIterator[bytes]:
        self.trickling += 1
        try:
            while True:
                yield b" "
                await asyncio.sleep(1)
        finally:
            self.trickling -= 1


def gated(name: str) -> tuple[ModuleServer, Gate]:
    module, gate = ModuleServer(name), Gate()
    module.add("hold", gate.hold, effect="once")
    module.add("echo", _echo, effect="read")
    module.add("trickle", gate.trickle, effect="once")
    return module, gate


async def _echo(request: Request) -> dict[str, Any]:
    return {"success": True, "result": request["arguments"]}


@contextmanager
def two_modules(folder: Path, **settings: object) -> Generator[tuple[TestBed, ModuleServer, Gate, ModuleServer, Gate]]:
    (owls, owl_gate), (cats, cat_gate) = gated("owls"), gated("cats")
    with redis_server(folder / "redis") as url, serve(owls), serve(cats):
        logs = folder / "logs"
        logs.mkdir()
        yield TestBed(url, (owls, cats), logs, settings), owls, owl_gate, cats, cat_gate


async def test_a_module_that_hangs_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Others' calls begin beyond its slots; it gets none until it is below half, and all again when it is alone."""
    with (
        two_modules(tmp_path, worker_concurrency=SLOTS, calls_per_caller=100) as (bed, owls, owl_gate, cats, cat_gate),
        bed.worker(),
    ):
        async with ToolFleet(settings=bed.settings) as fleet:
            hoots = [await fleet.submit(ToolCall(tool_name="owls.hold"), ADA) for _ in range(12)]
            await wait_until(lambda: owls.running == SLOTS, "alone, it has all slots")
            for _ in range(3):
                assert (await fleet.call(ToolCall(tool_name="cats.echo"), ADA, timeout=20)).success
            assert (owls.running, owl_gate.came) == (SLOTS, SLOTS)

            purrs = [await fleet.submit(ToolCall(tool_name="cats.hold"), ADA) for _ in range(3)]
            await wait_until(lambda: cats.running == BEYOND, "a quarter more may run")
            owl_gate.passing = 1
            await wait_until(lambda: cats.running == BEYOND + 1, "what is free is another one's")
            owl_gate.passing = SLOTS - HALF
            await wait_until(lambda: owls.running == HALF, "half are left")
            assert (await fleet.call(ToolCall(tool_name="cats.echo"), ADA, timeout=20)).success
            assert owl_gate.came == SLOTS, "it has got no slot since"

            owl_gate.passing += 1
            await wait_until(lambda: owls.running == SLOTS - 3, "below half, it may take what is free")
            cat_gate.passing = 3
            await wait_until(lambda: owls.running == 12 - owl_gate.passing, "alone, all of them")
            owl_gate.passing = 12
            results = await asyncio.wait_for(asyncio.gather(*(one.result() for one in [*hoots, *purrs])), 30)

    assert all(result.success for result in results)
    assert owls.most_running == SLOTS


@pytest.mark.load
async def test_a_thousand_trickling_calls_delay_no_other_module(tmp_path: Path) -> None:
    """Of seven users, to a module that answers a byte a second: the worst call to another module takes under half a second."""
    callers = [Caller(user_id=f"user-{number}", permission="owner", allowed_modules="*") for number in range(USERS)]
    echo, took = ToolCall(tool_name="cats.echo"), list[float]()
    with two_modules(tmp_path, worker_concurrency=TRICKLING) as (bed, _, owls, _, _), bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet:
            assert (await fleet.call(echo, ADA, timeout=20)).success
            trickling = [
                await fleet.submit(ToolCall(tool_name="owls.trickle"), callers[number % USERS], timeout=60)
                for number in range(TRICKLING)
            ]
            await wait_until(lambda: owls.trickling == TRICKLING, "all slots trickle", seconds=30)
            for _ in range(ECHOES):
                began_at = time.monotonic()
                assert (await fleet.call(echo, ADA, timeout=40)).success
                took.append(time.monotonic() - began_at)
                await asyncio.sleep(0.02)
            assert owls.trickling == TRICKLING, "they trickle still"
            await asyncio.gather(*(one.cancel() for one in trickling))

    print(f"p50 {sorted(took)[ECHOES // 2] * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")  # noqa: T201
    assert max(took) < WORST_SECONDS
