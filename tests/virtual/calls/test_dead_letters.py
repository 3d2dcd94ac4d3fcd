"""A call whose end nobody can know is kept for a person, who runs it anew, or drops it."""

import asyncio
from typing import Any

import pytest

from bed.fleet import Bed, Worker, until
from support.module_server import ModuleServer, Request
from toolfleet import Caller, ToolCall, ToolResult
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.errors import NoSuchDeadLetter

PIN = "4711-0815"
PAY = ToolCall(tool_name="bank.pay", arguments={"to": "bob", "pin": PIN})


class Bank:
    """A module that pays, or gives its `answer`, or, while it `hangs`, keeps whoever asks waiting."""

    def __init__(self) -> None:
        self.hangs = False
        self.answer: dict[str, Any] | None = None
        self.module = ModuleServer("bank")
        parameters = [{"name": "to", "type": "string"}, {"name": "pin", "type": "string", "sensitive": True}]
        self.module.add("pay", self.pay, effect="once", parameters=parameters)

    async def pay(self, request: Request) -> dict[str, Any]:
        if self.answer is not None:
            return self.answer
        if self.hangs:
            await asyncio.Event().wait()
        return {"success": True, "result": f"paid {request['arguments']['to']}"}


@pytest.fixture
def bank() -> Bank:
    return Bank()


async def test_a_replay_with_an_unknown_end_takes_the_letters_place(bed: Bed, bank: Bank, owner: Caller) -> None:
    """There is one letter still, which names the first; and it can be dropped."""
    bank.hangs = True
    await bed.serve(bank.module)
    fleet = await bed.agent()

    async def lost(work: "asyncio.Task[ToolResult]", worker: Worker) -> tuple[ToolResult, Worker]:
        """A worker is killed while the module has the call; another one, which is started then, finds it."""
        await until(lambda: bank.module.running, "the module has the call")
        worker.kill()
        await until(lambda: not bank.module.running, "its caller has gone")
        finder = await bed.worker()
        return await work, finder

    first, worker = await lost(asyncio.create_task(fleet.call(PAY, owner, timeout=600)), await bed.worker())
    replay = fleet.dead_letters.replay(first.audit.call_id, arguments={"pin": PIN})
    second, _ = await lost(asyncio.create_task(replay), worker)
    (letter,) = await fleet.dead_letters.list()

    assert second.error_code == "outcome_unknown"
    assert isinstance(letter, DeadLetter)
    assert (letter.call_id, letter.replay_of) == (second.audit.call_id, first.audit.call_id)
    assert letter.caller == owner
    with pytest.raises(NoSuchDeadLetter):
        await fleet.dead_letters.replay(first.audit.call_id, arguments={"pin": PIN})
    await fleet.dead_letters.drop(letter.call_id)
    assert await fleet.dead_letters.list() == []
    assert len(bank.module.calls("pay")) == 2


async def test_only_what_may_have_been_done_is_kept(bed: Bed, bank: Bank, owner: Caller) -> None:
    """A success, a refusal and an expired call leave no letter.

    A tool that its module has stopped leaves one: at the limit either may be first, the module or its worker.
    """
    await bed.serve(bank.module)
    fleet = await bed.agent()
    results = [await fleet.call(PAY, owner, timeout=30), await fleet.call(PAY, Caller())]
    await bed.worker()
    results.append(await fleet.call(PAY, owner))
    assert [result.error_code for result in results] == ["expired", "permission_denied", None]
    assert await fleet.dead_letters.list() == []

    bank.answer = {"success": False, "error": "stopped", "error_code": "timed_out", "effect_state": "unknown"}
    stopped = await fleet.call(PAY, owner)
    assert (stopped.error_code, stopped.effect_state, stopped.audit.attempts) == ("timed_out", "unknown", 1)
    (letter,) = await fleet.dead_letters.list()
    assert isinstance(letter, DeadLetter)
    assert (letter.call_id, letter.error_code) == (stopped.audit.call_id, "timed_out")
