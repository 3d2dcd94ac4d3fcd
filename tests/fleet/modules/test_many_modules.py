"""A fleet of 3,000 modules beside one of 20."""

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed
from support.modules.module_crowd import module_crowd
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
FEW, MANY = 20, 3000
CALLS = 300


@dataclass(frozen=True)
class Module:
    name: str
    url: str


@contextmanager
def fleet_of(number: int, url: str, folder: Path) -> Generator[TestBed]:
    folder.mkdir()
    logs = folder / "logs"
    logs.mkdir()
    modules: Any = tuple(Module(f"m{place}", f"{url}/m{place}") for place in range(number))
    with redis_server(folder / "redis") as redis_url:
        yield TestBed(redis_url, modules, logs)


async def p50_of_a_call(fleet: ToolFleet, number: int) -> float:
    """In seconds, one after the other, of whichever module."""
    took = list[float]()
    for _ in range(CALLS):
        call = ToolCall(tool_name=f"m{random.randrange(number)}.read")
        began_at = time.perf_counter()
        assert (await fleet.call(call, ADA, timeout=30)).success
        took.append(time.perf_counter() - began_at)
    return sorted(took)[CALLS // 2]


@pytest.mark.load
@pytest.mark.timeout(300)
async def test_thousands_of_modules_slow_no_call(tmp_path: Path) -> None:
    """The first listing, with an empty cache, has all tools of 3,000; a call takes at most twice as long as among 20."""
    p50 = dict[int, float]()
    with module_crowd() as url:
        for number in (FEW, MANY):
            with fleet_of(number, url, tmp_path / f"{number}") as bed:
                began_at, cpu = time.perf_counter(), time.process_time()
                async with ToolFleet(settings=bed.settings) as fleet:
                    assert len(await fleet.tools(ADA)) == number
                    seconds, cpu = time.perf_counter() - began_at, time.process_time() - cpu
                    print(f"{number} modules: first listing {seconds:.1f} s, {cpu:.1f} s of CPU here")  # noqa: T201
                    with bed.worker():
                        await p50_of_a_call(fleet, number)
                        p50[number] = await p50_of_a_call(fleet, number)
                        print(f"{number} modules: p50 of a call {p50[number] * 1000:.1f} ms")  # noqa: T201

    assert p50[MANY] < 2 * p50[FEW]
