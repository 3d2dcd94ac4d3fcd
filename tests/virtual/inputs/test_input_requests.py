"""Calls whose modules ask before they go on: they wait without a slot, and are answered once, by whoever may."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from bed.fleet import Bed, until
from support.fleet import SIGNING_KEY
from support.servers.asker import ADA, BOB, Asker, make_asker
from toolfleet import Caller, CallHandle, FleetUnavailable, InputNotTaken, PendingInput, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.contracts.inputs import MOST_ROUNDS
from toolfleet_tasks.calls.begun_calls import Owner

GREET = ToolCall(tool_name="desk.greet", takes_input=True)
WARM = ToolCall(tool_name="desk.warm", takes_input=True)
LONG = 600.0  # seconds
EFFECTS = (("none", "none"), (None, "unknown"))
"""What a module says of its effect, and what is known of it then."""


@pytest.fixture
def desk() -> Asker:
    return make_asker()


@pytest.fixture
async def fleet(bed: Bed, desk: Asker) -> ToolFleet:
    """An agent's side, with a worker."""
    await bed.serve(desk.server)
    await bed.worker()
    return await bed.agent()


async def asked(handle: CallHandle) -> PendingInput:
    """Return what the call asks, as soon as it does."""
    stop = await handle.next_stop(LONG)
    assert isinstance(stop, PendingInput), stop
    return stop


async def says_ada(_: PendingInput) -> Mapping[str, Any]:
    return ADA


async def test_a_call_asks_and_goes_on_with_the_answer(fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """Its module gets the answer and the state that it has given away, under the same id; and that is its first attempt."""
    handle = await fleet.submit(GREET, owner)
    asks = await asked(handle)
    status = await handle.status()

    assert (asks.round, asks.requests["who"].method, asks.requests["who"].params) == (
        1,
        "elicitation/create",
        {"message": "Who?"},
    )
    assert (status, status.inputs) == ("input_required", asks)
    assert await handle.answer(ADA, number=1)
    result = await handle.result()
    assert (result.success, result.effect_state, result.audit.attempts) == (True, "done", 1)
    assert result.result == {"round": 1, "responses": ADA, "state": "sealed ✓"}
    assert set(desk.server.call_ids("greet")) == {handle.id}
    assert [request.get("takes_input") for request in desk.server.requests] == [True, True]
    assert await handle.status() == "done"


async def test_the_waiting_coroutine_answers(fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """`fleet.call` asks its caller's function each time; where that gives up or raises, the call is taken back.

    A call does not ask for ever: after so many rounds its question ends it.
    """
    desk.asks = 3
    rounds = list[int]()

    async def answer(question: PendingInput) -> Mapping[str, Any]:
        rounds.append(question.round)
        return ADA

    async def give_up(question: PendingInput) -> None:
        return None

    async def fail(question: PendingInput) -> None:
        raise LookupError

    call = ToolCall(tool_name="desk.greet")
    result = await fleet.call(call, owner, on_input=answer)
    assert (result.success, rounds, desk.done) == (True, [1, 2, 3], [ADA])
    for gives_up in (give_up, fail):
        result = await fleet.call(call, owner, on_input=gives_up)
        assert (result.error_code, result.effect_state) == ("cancelled", "none")

    desk.start_anew()
    desk.asks = 1000
    result = await fleet.call(call, owner, on_input=says_ada)
    assert (result.error_code, len(desk.seen)) == ("module_error", MOST_ROUNDS + 1)


async def test_nobody_who_cannot_answer_is_asked(fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """A call that takes no input ends as refused, once, and says what its module says of the effect."""
    for said, state in EFFECTS:
        desk.start_anew()
        desk.effect_state = said
        result = await fleet.call(ToolCall(tool_name="desk.greet"), owner)

        assert (result.success, result.error_code, result.effect_state) == (False, "module_error", state)
        assert "its caller cannot be asked" in (result.error or "")
        assert (len(desk.seen), desk.done) == (1, [])
        assert "takes_input" not in desk.server.requests[0]


async def test_each_question_is_answered_once(fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """Of several at once one is taken; the same again changes nothing, and another one is refused, also after the end."""
    handle = await fleet.submit(GREET, owner)
    await asked(handle)
    with pytest.raises(InputNotTaken) as caught:
        await handle.answer(ADA, number=2)
    with pytest.raises(ValueError, match="'who'"):
        await handle.answer({"whom": {}}, number=1)
    desk.held.add(1)
    tries = [handle.answer(each, number=1) for each in (ADA, ADA, BOB, BOB)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    taken = ADA if True in answers[:2] else BOB
    other = BOB if taken is ADA else ADA
    assert [answer for answer in answers if not isinstance(answer, InputNotTaken)].count(True) == 1
    assert not await handle.answer(taken, number=1)
    with pytest.raises(InputNotTaken) as otherwise:
        await handle.answer(other, number=1)
    desk.held.clear()
    await handle.result()
    with pytest.raises(InputNotTaken) as late:
        await handle.answer(taken, number=1)

    assert [each.value.reason for each in (caught, otherwise, late)] == ["not_asked", "answered", "ended"]
    assert desk.done == [taken]


async def test_any_process_answers_for_its_owner(bed: Bed, fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """Whoever has begun the call may be gone: another process of its owner follows and answers it, and nobody else."""
    ada = Owner("ada")
    begun = await fleet.begun_calls.begin(GREET, owner, ada)
    stop = await begun.next_stop(LONG)
    assert isinstance(stop, PendingInput)
    other = await bed.agent()
    with pytest.raises(InputNotTaken):
        await other.begun_calls.answer(begun.id, Owner("bob"), 1, ADA)
    handle = await other.begun_calls.attach(begun.id, ada)
    assert handle is not None
    assert await handle.next_stop(LONG) == stop
    assert await other.begun_calls.answer(begun.id, ada, 1, ADA)
    result = await handle.next_stop(LONG)
    handle.leave()

    assert isinstance(result, ToolResult)
    assert (result.success, (await begun.end_within(LONG)) == result, desk.done) == (True, True, [ADA])


async def test_a_call_that_waits_holds_nothing(bed: Bed, desk: Asker, owner: Caller) -> None:
    """It leaves the slot of its worker, the place in its module and its caller's share to others."""
    await bed.serve(desk.server)
    await bed.worker(worker_concurrency=1, module_concurrency={"desk": 1}, calls_per_caller=1)
    fleet = await bed.agent(calls_per_caller=1)
    handles = list[CallHandle]()
    for _ in range(4):
        handles.append(await fleet.submit(GREET, owner))
        await asked(handles[-1])
    for handle in handles:
        assert await handle.answer(ADA)
    results = await asyncio.gather(*(handle.result() for handle in handles))

    assert ({result.success for result in results}, len(desk.done)) == ({True}, 4)


async def test_the_retry_is_still_there_after_an_answer(fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """To ask is no attempt: one that the module turns away afterwards is tried once more, with the same answer."""
    handle = await fleet.submit(GREET, owner)
    await asked(handle)
    desk.fails = 1
    await handle.answer(ADA)
    result = await handle.result()

    assert (result.success, result.audit.attempts, desk.done) == (True, 2, [ADA])
    assert [inputs["round"] for inputs in desk.seen] == [0, 1, 1]


async def test_cancel_and_the_deadline_end_a_call_that_waits(fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """What its module has said of the effect holds, and nobody knows if that has said nothing; an answer comes too late then."""
    handle = await fleet.submit(GREET, owner)
    await asked(handle)
    await handle.cancel()
    result = await handle.result()
    assert (result.error_code, result.effect_state) == ("cancelled", "none")
    with pytest.raises(InputNotTaken):
        await handle.answer(ADA, number=1)

    for said, state in EFFECTS:
        desk.start_anew()
        desk.effect_state = said
        handle = await fleet.submit(GREET, owner, timeout=10)
        await asked(handle)
        result = await handle.result()
        assert (result.success, result.effect_state, len(desk.seen)) == (False, state, 1)
        assert isinstance(await handle.next_stop(LONG), ToolResult)
    assert desk.done == []


@pytest.mark.parametrize(("signed", "lost_in"), [(False, 0), (True, 1)], ids=["before it asks", "with the answer"])
async def test_a_lost_workers_call_goes_on_asking(
    bed: Bed, desk: Asker, owner: Caller, signed: bool, lost_in: int
) -> None:
    """Whether it dies before its question is kept, or with the answer in its hands: the next worker has both."""
    bed.given |= {"visibility_timeout": 4, **({"signing_key": SIGNING_KEY} if signed else {})}
    await bed.serve(desk.server)
    fleet, doomed = await bed.agent(), await bed.worker()
    desk.held = {lost_in}
    handle = await fleet.submit(WARM, owner, timeout=LONG)
    if lost_in:
        await asked(handle)
        assert await handle.answer(ADA)
    await until(partial(_is_in_round, desk, lost_in), "it is at work")
    doomed.kill()
    await until(lambda: not desk.server.running, "its module has been hung up on")
    desk.held = set()
    await bed.worker()
    if not lost_in:
        await asked(handle)
        assert await handle.answer(ADA)
    result = await handle.result()

    assert (result.success, desk.done, result.audit.attempts) == (True, [ADA], 2)
    assert result.result == {"round": 1, "responses": ADA, "state": "sealed ✓"}


async def test_a_module_says_afterwards_that_it_has_asked(bed: Bed, desk: Asker, owner: Caller) -> None:
    """A worker that died before it kept the question: the next one asks the module, and the call waits for its answer."""
    desk.server.memory = lambda _: {"state": "input_required", **desk.question("desk.greet")}
    bed.given["visibility_timeout"] = 4
    await bed.serve(desk.server)
    fleet, doomed = await bed.agent(), await bed.worker()
    desk.held = {0}
    handle = await fleet.submit(GREET, owner, timeout=LONG)
    await until(lambda: desk.seen, "it has begun")
    doomed.kill()
    await until(lambda: not desk.server.running, "its module has been hung up on")
    desk.held = set()
    await bed.worker()
    assert (await asked(handle)).round == 1
    await handle.answer(ADA)
    result = await handle.result()

    assert (result.success, desk.done, len(desk.seen)) == (True, [ADA], 2)


async def test_answers_survive_cut_connections(bed: Bed, fleet: ToolFleet, desk: Asker, owner: Caller) -> None:
    """Redis ends every connection again and again meanwhile: each call has its answer, and is done once."""
    handles = [await fleet.submit(GREET, owner, timeout=LONG) for _ in range(12)]
    for handle in handles:
        await asked(handle)
    desk.held.add(1)  # what Redis was not heard to take is sent once more, and must not come after the call's end
    answering = asyncio.gather(*(_insist(handle) for handle in handles))
    for _ in range(5):
        bed.ask("CLIENT", "KILL", "TYPE", "normal")
        await asyncio.sleep(0)
    await answering
    desk.held.clear()
    results = await asyncio.gather(*(handle.result() for handle in handles))

    assert {result.success for result in results} == {True}
    assert desk.done == [ADA] * 12


async def _insist(handle: CallHandle) -> None:
    while True:
        try:
            await handle.answer(ADA, number=1)
        except FleetUnavailable:
            continue
        return


def _is_in_round(desk: Asker, number: int) -> bool:
    return any(inputs["round"] == number for inputs in desk.seen)
