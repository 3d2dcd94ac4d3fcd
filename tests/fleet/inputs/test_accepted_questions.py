"""Calls that their modules go on with by themselves, and that ask: the answer reaches the very work, whoever dies meanwhile."""

import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.fleet import SIGNING_KEY, TestBed
from support.hosts.nursery import Nursery, make_nursery
from support.module_server import serve
from support.servers.asker import ADA, BOB
from support.waiting import wait_until
from toolfleet import Caller, CallHandle, InputNotTaken, PendingInput, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

TEND = ToolCall(tool_name="nursery.tend", takes_input=True)
SECONDS = 30


@pytest.fixture(autouse=True)
def _in_fast_mode(fast_mode: None) -> None:
    """Only there is a lost worker's call back within seconds."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Nursery]:
    nursery = make_nursery()
    with serve(nursery.server):
        yield nursery


@pytest.fixture
def nursery(shared: Nursery) -> Nursery:
    shared.start_anew()
    return shared


@pytest.fixture(scope="module")
def served(shared: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """With a worker, for those that need none of their own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        bed = TestBed(
            url, (shared.server,), tmp_path_factory.mktemp("logs"), {"visibility_timeout": 4, "fast_transport": True}
        )
        with bed.worker():
            yield bed


@pytest.fixture
async def fleet(served: TestBed, nursery: Nursery) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=served.settings) as fleet:
        yield fleet


async def asked(handle: CallHandle) -> PendingInput:
    """What the call asks, as soon as it does."""
    stop = await handle.next_stop(SECONDS)
    assert isinstance(stop, PendingInput), stop
    return stop


async def test_its_answers_reach_the_work(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """It is begun once, with one attempt, and each answer comes with the state that went with its question."""
    nursery.asks = 2
    names = iter((ADA, BOB))

    async def answer(question: PendingInput) -> Mapping[str, Any]:
        return next(names)

    result = await fleet.call(TEND, owner, timeout=SECONDS, on_input=answer)

    assert (result.success, result.audit.attempts, len(nursery.begun)) == (True, 1, 1), result
    assert result.result == ["after 1", [ADA, BOB]]
    assert all(question["takes_input"] for question in nursery.asked)
    assert nursery.cancelled == []


@pytest.mark.parametrize("signed", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_worker_that_dies_with_the_answer_loses_nothing(
    redis_url: str, nursery: Nursery, owner: Caller, tmp_path: Path, signed: bool
) -> None:
    """Its module had the answer, and nobody has heard so: it is told again by the next worker, and nothing is begun anew."""
    more = {"visibility_timeout": 4, **({"signing_key": SIGNING_KEY} if signed else {})}
    bed = TestBed(redis_url, (nursery.server,), tmp_path, more)
    nursery.is_held = True
    async with ToolFleet(settings=bed.settings) as fleet:
        with bed.worker() as doomed:
            handle = await fleet.submit(TEND, owner, timeout=60)
            await asked(handle)
            assert await handle.answer(ADA, number=1)
            await wait_until(lambda: nursery.taken, "the module has the answer")
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
        nursery.is_held = False
        with bed.worker():
            result = await handle.result(SECONDS)

    assert (result.success, result.result, result.audit.attempts) == (True, ["after 0", [ADA]], 1), result
    assert len(nursery.begun) == 1


async def test_an_answer_counts_once(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """The same again changes nothing, another is refused, and after the end each is."""
    nursery.is_held = True
    handle = await fleet.submit(TEND, owner, timeout=SECONDS)
    await asked(handle)
    assert await handle.answer(ADA, number=1)
    assert not await handle.answer(ADA, number=1)
    with pytest.raises(InputNotTaken):
        await handle.answer(BOB, number=1)
    nursery.is_held = False
    assert (await handle.result(SECONDS)).success
    with pytest.raises(InputNotTaken):
        await handle.answer(ADA, number=1)
    assert nursery.taken == [ADA]


@pytest.mark.parametrize("ends_by", ["its caller", "its deadline"])
async def test_its_module_is_told_that_nobody_wants_it(
    fleet: ToolFleet, nursery: Nursery, owner: Caller, ends_by: str
) -> None:
    """While it waits for an answer nobody holds it; all the same its module hears of the end, once."""
    handle = await fleet.submit(TEND, owner, timeout=4 if ends_by == "its deadline" else 60)
    await asked(handle)
    if ends_by == "its caller":
        await handle.cancel()
    result = await handle.result(SECONDS)

    assert (result.success, result.effect_state) == (False, "unknown")
    await wait_until(lambda: nursery.cancelled, "the module is told", seconds=SECONDS)
    assert nursery.cancelled == [{"call_id": handle.id, "handle": "egg-1", "cancel": True}]


async def test_whoever_takes_no_input_is_not_asked(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """The module is not told that it may ask; if it does, the call has failed."""
    result = await fleet.call(ToolCall(tool_name="nursery.tend"), owner, timeout=SECONDS)

    assert (result.success, result.error_code, result.effect_state) == (False, "module_error", "unknown")
    assert "cannot be asked" in (result.error or "")
    own = [question for question in nursery.asked if question["call_id"] == result.audit.call_id]
    assert "takes_input" not in own[0]


async def test_the_stock_transport_takes_answers_too(
    redis_url: str, nursery: Nursery, owner: Caller, tmp_path: Path
) -> None:
    """There the same answer publishes the call once more: it comes too early, and does no harm."""
    bed = TestBed(redis_url, (nursery.server,), tmp_path, {"fast_transport": False})
    nursery.is_held = True
    with bed.worker():
        async with ToolFleet(settings=bed.settings) as fleet:
            handle = await fleet.submit(TEND, owner, timeout=SECONDS)
            await asked(handle)
            assert await handle.answer(ADA, number=1)
            assert not await handle.answer(ADA, number=1)
            nursery.is_held = False
            result = await handle.result(SECONDS)

    assert (result.success, result.result, result.audit.attempts) == (True, ["after 0", [ADA]], 1), result
    assert len(nursery.begun) == 1
