"""MCP servers of older versions ask in the middle of a call: it is held in their session until whoever called has answered."""

from pathlib import Path

import pytest

from support.hosts.mcp_server import HostedServer, hosted_nest
from toolfleet_modules.sdk.client import ModuleResult
from toolfleet_registry.contracts.inputs import CallInputs

pytestmark = pytest.mark.asyncio


async def ask(served: HostedServer, call_id: str, text: str = "", **said: object) -> ModuleResult:
    """One attempt of a call that asks."""
    options = {"call_id": call_id, "takes_input": True, "user_id": "ada", **said}
    return await served.client.send("nest.ask", {"text": text}, **options)  # type: ignore[arg-type]


def answer(asked: ModuleResult, name: str, number: int = 1) -> CallInputs:
    responses = {key: {"action": "accept", "content": {"name": name}} for key in asked.requests}
    return CallInputs(round=number, responses=responses, state=asked.state)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_call_goes_on_with_the_answer(tmp_path: Path, transport: str) -> None:
    """The server is called once, however often it asks; a repeat of a question or of an answer changes nothing."""
    async with hosted_nest(f"{transport} --old", tmp_path, asks=True) as served:
        first = [await ask(served, "call-1", "2") for _ in range(2)]
        (request,) = first[0].requests.values()
        assert (request["method"], request["params"]["message"]) == ("elicitation/create", "Who?")
        assert first[0].state == first[1].state

        second = [await ask(served, "call-1", "2", inputs=answer(first[0], "Ada")) for _ in range(2)]
        assert second[0].requests == second[1].requests == first[0].requests
        told = await ask(served, "call-1", "2", inputs=answer(second[0], "Bob", 2))

        assert (told.success, told.result) == (True, "Hello Bob")
        said = [line for line in served.noted() if line.startswith(("ask", "answered"))]
        assert said == ["ask 2", "answered accept Ada", "answered accept Bob"]


async def test_a_server_may_ask_beside_its_calls(tmp_path: Path) -> None:
    """On the stream of its own, and it drops what it asks before that is open: a call is sent afterwards."""
    async with hosted_nest("http --old", tmp_path, {"ASIDE": "1", "STREAM_SECONDS": "0.5"}, asks=True) as served:
        asked = await ask(served, "call-1")
        told = await ask(served, "call-1", inputs=answer(asked, "Ada"))

        assert (told.success, told.result) == (True, "Hello Ada")


async def test_a_caller_who_cannot_be_asked_is_not(tmp_path: Path) -> None:
    """The server is refused, and its tool fails as it words that; the next call that can be asked is."""
    async with hosted_nest("http --old", tmp_path, asks=True) as served:
        refused = await ask(served, "call-1", takes_input=False)
        assert (refused.success, "Nobody can be asked now." in str(refused.error)) == (False, True)
        assert (await ask(served, "call-2")).requests


async def test_a_session_has_one_call_at_a_time(tmp_path: Path) -> None:
    """While a user's call waits for an answer their next one is told to come again; another user's runs."""
    async with hosted_nest("http --old", tmp_path, asks=True) as served:
        asked = await ask(served, "call-1")
        busy = await served.client.send("nest.echo", {"text": "x"}, user_id="ada")
        other = await served.client.send("nest.echo", {"text": "x"}, user_id="eve")

        assert (busy.status, other.success) == (503, True)
        assert (await ask(served, "call-1", inputs=answer(asked, "Ada"))).success
        assert (await served.client.send("nest.echo", {"text": "x"}, user_id="ada")).success


async def test_a_question_that_nobody_answers_is_given_up(tmp_path: Path) -> None:
    """After the call's time its session is free; an answer that comes later ends the call as unknown."""
    async with hosted_nest("http --old", tmp_path, asks=True) as served:
        assert (await served.settled("echo", text="up")).success
        asked = await ask(served, "call-1", "2", seconds=1)
        again = await ask(served, "call-1", "2", inputs=answer(asked, "Ada"), seconds=1)
        assert again.requests
        assert (await served.settled("echo", text="on")).success
        late = await ask(served, "call-1", "2", inputs=answer(again, "Bob", 2))

        assert (late.success, late.effect_state) == (False, "unknown")
        assert "has ended" in str(late.error)
        assert [line for line in served.noted() if line.startswith("answered")] == ["answered accept Ada"]


async def test_an_answer_is_for_its_own_call(tmp_path: Path) -> None:
    """Who has the state of another call can answer nothing with it."""
    async with hosted_nest("http --old", tmp_path, asks=True) as served:
        asked = await ask(served, "call-1")
        foreign = await ask(served, "call-2", inputs=answer(asked, "Eve"))
        told = await ask(served, "call-1", inputs=answer(asked, "Ada"))

        assert (foreign.success, told.result) == (False, "Hello Ada")


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_its_log_goes_on_after_an_answer(tmp_path: Path, transport: str) -> None:
    """What the server logs once it is answered is heard by whoever waits then, and by nobody who wants none."""
    async with hosted_nest(f"{transport} --old", tmp_path, asks=True) as served:
        first = await ask(served, "call-1", "2", log_level="info")
        second = await ask(served, "call-1", "2", log_level="info", inputs=answer(first, "Ada"))
        told = await ask(served, "call-1", "2", log_level="info", inputs=answer(second, "Bob", 2))
        silent = await ask(served, "call-2")
        assert (await ask(served, "call-2", inputs=answer(silent, "Eve"))).log == ()

        said = [[message.data for message in each.log] for each in (first, second, told)]
        assert said == [[], ["Ada is number 1"], ["Bob is number 2"]]
