"""Calls that their modules go on with by themselves, and that ask: the answer reaches the very work, whoever dies meanwhile."""

from collections.abc import Mapping
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.fleet import SIGNING_KEY
from support.hosts.nursery import Nursery, make_nursery
from support.servers.asker import ADA, BOB
from toolfleet import Caller, CallHandle, InputNotTaken, PendingInput, ToolCall, ToolFleet

TEND = ToolCall(tool_name="nursery.tend", takes_input=True)
LONG = 600.0  # seconds


@pytest.fixture
def nursery() -> Nursery:
    return make_nursery()


@pytest.fixture
async def fleet(bed: Bed, nursery: Nursery) -> ToolFleet:
    """An agent's side, with a worker."""
    await bed.serve(nursery.server)
    await bed.worker()
    return await bed.agent()


async def asked(handle: CallHandle) -> PendingInput:
    """Return what the call asks, as soon as it does."""
    stop = await handle.next_stop(LONG)
    assert isinstance(stop, PendingInput), stop
    return stop


async def test_its_answers_reach_the_work(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """It is begun once, with one attempt, and each answer comes with the state that went with its question."""
    nursery.asks = 2
    names = iter((ADA, BOB))

    async def answer(question: PendingInput) -> Mapping[str, Any]:
        return next(names)

    result = await fleet.call(TEND, owner, on_input=answer)

    assert (result.success, result.audit.attempts, len(nursery.begun)) == (True, 1, 1), result
    assert result.result == ["after 1", [ADA, BOB]]
    assert all(question["takes_input"] for question in nursery.asked)
    assert nursery.cancelled == []


@pytest.mark.parametrize("signed", [False, True])
async def test_a_worker_that_dies_with_the_answer_loses_nothing(
    bed: Bed, nursery: Nursery, owner: Caller, signed: bool
) -> None:
    """Its module had the answer, and nobody has heard so: it is told again by the next worker, and nothing is begun anew."""
    bed.given |= {"visibility_timeout": 4, **({"signing_key": SIGNING_KEY} if signed else {})}
    await bed.serve(nursery.server)
    fleet, doomed = await bed.agent(), await bed.worker()
    nursery.is_held = True
    handle = await fleet.submit(TEND, owner, timeout=LONG)
    await asked(handle)
    assert await handle.answer(ADA, number=1)
    await until(lambda: nursery.taken, "the module has the answer")
    doomed.kill()
    nursery.is_held = False
    await bed.worker()
    result = await handle.result()

    assert (result.success, result.result, result.audit.attempts) == (True, ["after 0", [ADA]], 1), result
    assert len(nursery.begun) == 1


async def test_an_answer_counts_once(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """The same again changes nothing, another is refused, and after the end each is."""
    nursery.is_held = True
    handle = await fleet.submit(TEND, owner)
    await asked(handle)
    assert await handle.answer(ADA, number=1)
    assert not await handle.answer(ADA, number=1)
    with pytest.raises(InputNotTaken):
        await handle.answer(BOB, number=1)
    nursery.is_held = False
    assert (await handle.result()).success
    with pytest.raises(InputNotTaken):
        await handle.answer(ADA, number=1)
    assert nursery.taken == [ADA]


async def test_its_module_is_told_that_nobody_wants_it(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """While it waits for an answer nobody holds it; all the same its module hears of the end, once: by its caller, by its deadline."""
    for ends_by in ("its caller", "its deadline"):
        nursery.start_anew()
        handle = await fleet.submit(TEND, owner, timeout=10)
        await asked(handle)
        if ends_by == "its caller":
            await handle.cancel()
        result = await handle.result()

        assert (result.success, result.effect_state) == (False, "unknown"), ends_by
        await until(lambda: nursery.cancelled, "the module is told")
        assert nursery.cancelled == [{"call_id": handle.id, "handle": "egg-1", "cancel": True}]


async def test_whoever_takes_no_input_is_not_asked(fleet: ToolFleet, nursery: Nursery, owner: Caller) -> None:
    """The module is not told that it may ask; if it does, the call has failed."""
    result = await fleet.call(ToolCall(tool_name="nursery.tend"), owner)

    assert (result.success, result.error_code, result.effect_state) == (False, "module_error", "unknown")
    assert "cannot be asked" in (result.error or "")
    assert "takes_input" not in nursery.asked[0]
