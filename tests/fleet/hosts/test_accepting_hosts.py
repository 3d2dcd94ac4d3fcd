"""Hosts that go on with calls by themselves, and are gone before these have ended."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.hosts.announced_host import announced
from support.module_server import serve
from support.modules.listed_modules import until_listed
from support.servers.hatchery import HATCHED, Hatchery, make_hatchery
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.settings import Settings

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
SECONDS = 60


@pytest.fixture
def first() -> Iterator[Hatchery]:
    nest = make_hatchery()
    with serve(nest.server):
        yield nest


@pytest.fixture
def second() -> Iterator[Hatchery]:
    nest = make_hatchery()
    nest.answer = HATCHED
    with serve(nest.server):
        yield nest


@pytest.fixture
async def fleet(redis_url: str, tmp_path: Path) -> AsyncIterator[ToolFleet]:
    bed = TestBed(redis_url, (), tmp_path, {"visibility_timeout": 4})
    with bed.worker():
        async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
            yield fleet


async def test_a_call_whose_host_has_left_ends_at_once(
    redis_url: str, fleet: ToolFleet, first: Hatchery, second: Hatchery
) -> None:
    """One for once is unknown, never undone; one that may be repeated is begun anew elsewhere. No deadline is waited for."""
    async with AsyncExitStack() as stack:
        async with announced(redis_url, "a", module="nest", url=first.server.url):
            await until_listed(fleet, ADA, "nest")
            once = await fleet.submit(ToolCall(tool_name="nest.hatch"), ADA, timeout=600)
            read = await fleet.submit(ToolCall(tool_name="nest.warm"), ADA, timeout=600)
            await wait_until(lambda: len({question["handle"] for question in first.asked}) == 2, "both go on")
            await stack.enter_async_context(announced(redis_url, "b", module="nest", url=second.server.url))
        lost, found = await once.result(SECONDS), await read.result(SECONDS)

    assert (lost.error_code, lost.effect_state, lost.audit.attempts) == ("outcome_unknown", "unknown", 1)
    assert (found.success, found.result, found.audit.attempts) == (True, "an owl", 2)
    assert (len(first.begun), len(second.begun)) == (2, 1)
