"""A module that goes on with a call by itself: it says so once, and says where the call is to whoever asks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from support.hosts.nursery import WHO
from toolfleet.sdk import Accepted, Module, ModuleClient, Replies, StatusAnswer
from toolfleet_modules.calls.reply import Reply
from toolfleet_registry.contracts.inputs import CallInputs

MakeReplies = Callable[[], Replies]
KEY = "a module's key of more than thirty-two characters"


@dataclass
class Hatchery:
    """What a test says of the work: the `answer` to a status, none for ever, or what is raised. `begun` has the handles."""

    answer: StatusAnswer | Exception | str | None = field(default_factory=lambda: StatusAnswer.running(0.25, "warming"))
    begun: list[str] = field(default_factory=list)
    asked: list[tuple[str, bool]] = field(default_factory=list)

    async def status(self, handle: str, *, cancel: bool) -> StatusAnswer:
        self.asked.append((handle, cancel))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer  # type: ignore[return-value] # one is wrong on purpose


def make_owls(
    hatchery: Hatchery, replies: Replies | None = None, *, key: str | None = "", follows: bool = True
) -> Module:
    owls = Module("owls", replies=replies, key=key)

    @owls.tool(effect="once")
    async def hatch(eggs: int = 1) -> Any:
        hatchery.begun.append(f"egg-{len(hatchery.begun) + 1}")
        raise Accepted(hatchery.begun[-1], poll_after_seconds=0.5)

    @owls.tool(effect="read")
    def warm() -> Any:
        hatchery.begun.append("warm ✓")
        return Accepted("warm ✓")

    if follows:
        owls.status(hatchery.status)
    return owls


async def test_a_repeat_is_accepted_under_the_same_handle(make_replies: MakeReplies) -> None:
    """The work begins once for a call id, whichever process of the module is asked."""
    hatchery = Hatchery()
    one, other = make_owls(hatchery, make_replies()), make_owls(hatchery, make_replies())
    async with one.client() as here, other.client() as there:
        first = await here.send("hatch", {"eggs": 2}, call_id="c1")
        again = await there.send("hatch", {"eggs": 2}, call_id="c1")
        different = await there.send("hatch", {"eggs": 3}, call_id="c1")
    assert (first.handle, first.retry_after_seconds, first.success) == ("egg-1", 0.5, False)
    assert (again.handle, hatchery.begun) == ("egg-1", ["egg-1"])
    assert different.status == 422


async def test_the_end_is_remembered(make_replies: MakeReplies) -> None:
    """Once it is known, it answers a status, a reconciliation and a repeat, and nobody is asked any more."""
    hatchery = Hatchery()
    one, other = make_owls(hatchery, make_replies()), make_owls(hatchery, make_replies())
    async with one.client() as here, other.client() as there:
        await here.send("hatch", {}, call_id="c1")
        running = await there.status("c1", "egg-1")
        assert await there.reconcile("c1") == running
        hatchery.answer = StatusAnswer.done({"owls": 2})
        done = await there.status("c1", "egg-1")
        hatchery.answer = RuntimeError("nobody asks me")
        assert await here.status("c1", "egg-1") == await here.reconcile("c1") == done
        repeat = await here.send("hatch", {}, call_id="c1")
    assert running == {
        "call_id": "c1",
        "state": "running",
        "handle": "egg-1",
        "progress": 0.25,
        "message": "warming",
    }
    assert (done["state"], done["success"], done["result"]) == ("done", True, {"owls": 2})
    assert (repeat.success, repeat.result, repeat.tool_name, hatchery.begun) == (
        True,
        {"owls": 2},
        "owls.hatch",
        ["egg-1"],
    )


async def test_a_failure_is_an_end_as_well() -> None:
    """It says in words what went wrong, and whether its effect has happened."""
    hatchery = Hatchery(StatusAnswer.failed("The egg was cold.", effect_state="none"))
    async with make_owls(hatchery).client() as client:
        await client.send("hatch", {}, call_id="c1")
        answer = await client.status("c1", "egg-1")
    assert (answer["state"], answer["success"], answer["effect_state"]) == ("done", False, "none")
    assert answer["error"] == "The egg was cold."


async def test_another_handle_is_not_known() -> None:
    """Nobody is told of a call under a handle that it never had."""
    hatchery = Hatchery()
    async with make_owls(hatchery).client() as client:
        await client.send("hatch", {}, call_id="c1")
        assert await client.status("c1", "egg-2") == {"call_id": "c1", "state": "unknown"}
    assert hatchery.asked == []


async def test_a_handle_outlives_the_memory_of_replies() -> None:
    """After a restart with nothing remembered, whoever follows the work may still know it; a reconciliation claims nothing."""
    hatchery = Hatchery()
    async with make_owls(hatchery).client() as client:
        await client.send("hatch", {}, call_id="c1")
    async with make_owls(hatchery).client() as restarted:
        assert (await restarted.status("c1", "egg-1"))["state"] == "running"
        assert await restarted.reconcile("c1") == {"call_id": "c1", "state": "unknown"}


async def test_who_wants_it_no_more_says_so() -> None:
    """The wish reaches the module's function, which answers what has become of it."""
    hatchery = Hatchery(StatusAnswer.none())
    async with make_owls(hatchery).client() as client:
        await client.send("hatch", {}, call_id="c1")
        assert await client.status("c1", "egg-1", cancel=True) == {"call_id": "c1", "state": "none"}
    assert hatchery.asked == [("egg-1", True)]


@pytest.mark.parametrize("answer", [RuntimeError("a secret"), "no answer", None], ids=["raises", "wrong type", "hangs"])
async def test_a_function_that_fails_says_nothing_of_the_call(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet is told to ask again, in time and without the function's words; a reconciliation says that it is at work."""
    monkeypatch.setattr("toolfleet_modules.calls.idempotency.FOLLOW_SECONDS", 0.2)
    async with make_owls(Hatchery(answer)).client() as client:
        await client.send("hatch", {}, call_id="c1")
        refused = await client.http.post("/status", json={"call_id": "c1", "handle": "egg-1"})
        assert (refused.status_code, "a secret" in refused.text) == (503, False)
        assert await client.reconcile("c1") == {"call_id": "c1", "state": "running", "handle": "egg-1"}


async def test_a_plain_tool_may_return_it() -> None:
    """Also one that returns it, with a handle beyond ASCII and no word of when to ask."""
    hatchery = Hatchery()
    async with make_owls(hatchery).client() as client:
        accepted = await client.call("warm")
        health = (await client.http.get("/health")).json()
    assert (accepted.handle, accepted.retry_after_seconds) == ("warm ✓", None)
    assert (health["accepted"], health["failed"], health["running"]) == (1, 0, 0)


async def test_without_a_status_nothing_is_accepted() -> None:
    """A module that cannot say where a call is has no such route, and its call ends as unknown: it has begun."""
    async with make_owls(Hatchery(), follows=False).client() as client:
        result = await client.call("hatch")
        assert (await client.http.post("/status", json={"call_id": "c1", "handle": "egg-1"})).status_code == 404
    assert (result.success, result.effect_state, result.handle) == (False, "unknown", "")


async def test_a_status_is_for_the_fleet_only() -> None:
    """With a key, the token must be for this call; and a question that is none is refused."""
    async with make_owls(Hatchery(), key=KEY).client() as client:
        await client.send("hatch", {}, call_id="c1")
        assert (await client.status("c1", "egg-1"))["state"] == "running"
        question = {"call_id": "c1", "handle": "egg-1"}
        token = client._token("", None, "c2", None, 60)
        assert await _status_of(client, question, {"Toolfleet-Caller": token}) == 403
        assert await _status_of(client, question, {}) == 403
    async with make_owls(Hatchery()).client() as client:
        wrongs: tuple[Any, ...] = (
            {"call_id": "c1"},
            {"call_id": "c1", "handle": ""},
            {"call_id": "c1", "handle": "x" * 513},
            [],
        )
        for wrong in wrongs:
            assert await _status_of(client, wrong, {}) == 422


@pytest.mark.parametrize("handle", ["", "x" * 513, "two\nlines", "a\0b"])
def test_a_handle_is_a_printable_name(handle: str) -> None:
    """What no request could carry is refused where it is made."""
    with pytest.raises(ValueError, match="printable"):
        Accepted(handle)
    with pytest.raises(ValueError, match="printable"):
        Reply.accepted("owls.hatch", handle)


def test_a_module_has_one_status() -> None:
    """A second function would be asked for calls of the first."""
    owls = make_owls(Hatchery())
    with pytest.raises(ValueError, match="already"):
        owls.status(Hatchery().status)
    with pytest.raises(ValueError, match="poll_after_seconds"):
        Accepted("egg", poll_after_seconds=float("nan"))


async def _status_of(client: ModuleClient, question: Any, headers: dict[str, str]) -> int:
    response: httpx.Response = await client.http.post("/status", json=question, headers=headers)
    return response.status_code


async def test_its_function_may_ask(make_replies: MakeReplies) -> None:
    """The answer comes with each question from then on; a repeat of the call is still accepted, and its end is remembered."""
    owls, seen = make_owls(Hatchery(), make_replies(), follows=False), list[CallInputs | None]()

    @owls.status
    def where(handle: str, *, cancel: bool, inputs: CallInputs | None) -> StatusAnswer:
        seen.append(inputs)
        return StatusAnswer.asks(WHO, handle) if inputs is None else StatusAnswer.done(inputs.responses["who"])

    ada = CallInputs(round=1, responses={"who": {"action": "accept"}}, state="egg-1")
    async with owls.client() as client:
        await client.send("hatch", {}, call_id="c1", takes_input=True)
        asks = await client.status("c1", "egg-1", takes_input=True)
        again = await client.send("hatch", {}, call_id="c1", takes_input=True)
        done = await client.status("c1", "egg-1", takes_input=True, inputs=ada)
        assert await client.status("c1", "egg-1") == done

    assert asks == {
        "call_id": "c1",
        "state": "input_required",
        "input_required": {"requests": WHO, "state": "egg-1"},
        "effect_state": "unknown",
    }
    assert (again.handle, done["state"], done["result"]) == ("egg-1", "done", {"action": "accept"})
    assert [each and each.responses for each in seen] == [None, ada.responses]


async def test_a_function_that_takes_no_answer_cannot_ask() -> None:
    """That is a fault of its author's: the fleet is told to ask again, and the log says why."""
    async with make_owls(Hatchery(StatusAnswer.asks(WHO))).client() as client:
        await client.send("hatch", {}, call_id="c1", takes_input=True)
        with pytest.raises(httpx.HTTPStatusError, match="503"):
            await client.status("c1", "egg-1", takes_input=True)
