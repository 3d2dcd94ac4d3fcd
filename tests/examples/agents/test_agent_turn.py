"""The agent's loop on a real fleet: what it offers, runs and writes down, and how it goes on after it was cut off."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from agent_core.calls import Calls, FleetAway
from agent_core.conversations import Conversations, Talk, open_engine
from agent_core.history import Said
from agent_core.models.model import ModelAway
from agent_core.people import People
from agent_core.settings import AgentSettings
from agent_core.turn import Turns
from support.core.reciting_model import Line, RecitingModel
from support.fleet import TestBed
from support.module_server import ModuleServer, holding
from support.servers.redis_faults import faulty_redis
from support.waiting import wait_until
from toolfleet import Conversation, Settings, ToolFleet


@dataclass
class Stage:
    """A conversation of ada's, and turns in it."""

    fleet: ToolFleet
    conversations: Conversations
    talk: Talk
    engine: Engine
    settings: AgentSettings
    keys_live_seconds: float = 3600.0

    def turns(self, model: RecitingModel) -> Turns:
        calls = Calls(self.fleet, self.settings.patience_seconds)
        people = People(self.engine, self.settings)
        return Turns(self.fleet, calls, model, self.conversations, people, self.settings, self.keys_live_seconds)

    async def run(self, model: RecitingModel, words: str = "hello", source_id: str | None = "m1") -> str:
        said = Said("user", {"role": "user", "content": words}, source_id=source_id)
        return await self.turns(model).run(self.talk, said, naming=lambda place: f"{self.talk.id}.{place}")

    async def contents(self) -> list[tuple[str, Any]]:
        history = await self.conversations.history(self.talk.id)
        return [(said.source, said.body.get("content")) for said in history.said]


@pytest.fixture
async def stage(fleet: ToolFleet, tmp_path: Path) -> AsyncIterator[Stage]:
    engine = open_engine(f"sqlite:///{tmp_path / 'agent.db'}")
    conversations = Conversations(engine)
    await conversations.make_tables()
    talk = await conversations.at("ada", Conversation(platform="chat"))
    yield Stage(fleet, conversations, talk, engine, AgentSettings(permission="user", patience_seconds=1))
    engine.dispose()


def nap() -> Line:
    return [("owls.nap_once", {"seconds": 0})]


async def test_calls_of_one_answer_run_side_by_side_and_come_back_in_order(stage: Stage, owls: ModuleServer) -> None:
    """Their results stand behind the answer in its order, and the model speaks again."""
    naps = [("owls.nap", {"seconds": 1}), ("owls.nap", {"seconds": 0})]
    model = RecitingModel([*naps, ("owls.echo", {"n": 1}), ("nonsense", {})], "done")

    with holding(owls, "nap") as release:
        turn = asyncio.create_task(stage.run(model))
        await wait_until(lambda: owls.running == 2, "both run")
        release()
        assert await turn == "done"
    assert [body["role"] for body in model.asked[1]] == ["user", "assistant", *["tool"] * 4]
    assert [body["tool_call_id"] for body in model.asked[1][2:]] == ["c0", "c1", "c2", "c3"]
    assert model.asked[1][4]["content"] == '{"n":1}'
    assert "Invalid tool name" in model.asked[1][5]["content"]


async def test_a_result_that_is_too_long_is_cut(stage: Stage) -> None:
    """The model reads its beginning."""
    stage.settings = AgentSettings(result_chars=10)
    model = RecitingModel([("owls.echo", {"text": "x" * 1000})], "done")
    await stage.run(model)

    assert model.asked[1][2]["content"] == '{"text":"x… (cut)'


async def test_a_model_that_never_ends_is_stopped(stage: Stage, owls: ModuleServer) -> None:
    """After `max_steps` answers the turn ends in words of the core's own."""
    stage.settings = AgentSettings(max_steps=3)
    words = await stage.run(RecitingModel(*[[("owls.echo", {"n": n})] for n in range(10)]))

    assert words == "I stopped after 3 steps."
    assert len(owls.calls("echo")) == 3
    assert (await stage.contents())[-1] == ("model", words)


async def test_a_message_that_comes_again_is_answered_with_the_same_words(stage: Stage, owls: ModuleServer) -> None:
    """Neither the model nor a tool is asked a second time."""
    model = RecitingModel(nap(), "done")
    answers = [await stage.run(model), await stage.run(model)]

    assert answers == ["done", "done"]
    assert len(owls.calls("nap_once")) == 1
    assert len(await stage.contents()) == 4


async def test_a_turn_that_is_cut_off_before_its_model_answers_goes_on(stage: Stage) -> None:
    """The message is taken in once; the next try asks the model again."""
    model = RecitingModel(ModelAway("no"), "hi")
    with pytest.raises(ModelAway):
        await stage.run(model)

    assert await stage.run(model) == "hi"
    assert await stage.contents() == [("user", "hello"), ("model", "hi")]


async def test_a_turn_that_is_cut_off_while_a_tool_runs_goes_on_with_its_result(
    stage: Stage, owls: ModuleServer
) -> None:
    """The call is not taken back; the same message brings its result, and the module saw one request."""
    with holding(owls, "nap_once"):
        turn = asyncio.create_task(stage.run(RecitingModel(nap())))
        await wait_until(lambda: owls.running == 1, "the tool runs")
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    model = RecitingModel("slept well")
    assert await stage.run(model) == "slept well"
    assert model.asked[0][-1]["content"] == "awake"
    assert len(owls.calls("nap_once")) == 1
    assert owls.interrupted == []


async def test_a_turn_that_is_cut_off_after_a_tool_ran_does_not_run_it_again(stage: Stage, owls: ModuleServer) -> None:
    """The result is written before the model is asked again, and the next try begins there."""
    with pytest.raises(ModelAway):
        await stage.run(RecitingModel(nap()))

    assert await stage.run(RecitingModel("done")) == "done"
    assert len(owls.calls("nap_once")) == 1


async def test_another_message_first_settles_what_was_begun(stage: Stage, owls: ModuleServer) -> None:
    """The calls of a cut-off turn get their results before what is said next, each once; then each message its answer."""
    with holding(owls, "nap_once"):
        turn = asyncio.create_task(stage.run(RecitingModel(nap())))
        await wait_until(lambda: owls.running == 1, "the tool runs")
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)

    assert await stage.run(RecitingModel("slept", "well"), "and then?", "m2") == "well"
    assert await stage.run(RecitingModel(), source_id="m1") == "slept"
    assert [source for source, _ in await stage.contents()] == ["user", "model", "tools", "model", "user", "model"]
    assert len(owls.calls("nap_once")) == 1


async def test_a_wake_up_counts_as_done_when_it_was_acted_on(stage: Stage, owls: ModuleServer) -> None:
    """Its model was away, and a user spoke before it came again: it is acted on first, by the words of its own."""
    marks: list[Connection] = []
    wake = Said("wake", {"role": "user", "content": "the site is ready"}, source_id="w1")
    with pytest.raises(ModelAway):
        await stage.turns(RecitingModel()).run(stage.talk, wake, naming=str, finish=marks.append)

    model = RecitingModel([("owls.echo", {"deploy": 1})], "deployed", "you have none")
    assert await stage.run(model, "which files have I?", "m2") == "you have none"
    assert marks == []
    again = stage.turns(RecitingModel())
    assert await again.run(stage.talk, wake, naming=str, finish=marks.append) == "deployed"
    assert len(marks) == 1
    assert [body["content"] for body in model.asked[0]] == ["the site is ready"]
    assert len(owls.calls("echo")) == 1


async def test_one_answer_makes_only_so_many_calls(stage: Stage, owls: ModuleServer) -> None:
    """The others get an error for a result, so that the model may ask again."""
    stage.settings = AgentSettings(max_calls=2)
    model = RecitingModel([("owls.echo", {"n": n}) for n in range(4)], "done")

    assert await stage.run(model) == "done"
    assert len(owls.calls("echo")) == 2
    told = [body["content"] for body in model.asked[1][2:]]
    assert told[:2] == ['{"n":0}', '{"n":1}']
    assert [text.startswith("Error: Not called: 2 calls at once") for text in told[2:]] == [True, True]


async def test_a_call_whose_key_is_forgotten_is_not_made_again(stage: Stage, owls: ModuleServer) -> None:
    """A core that was away for longer than the fleet remembers keys says that the outcome is unknown."""
    with holding(owls, "nap_once"):
        turn = asyncio.create_task(stage.run(RecitingModel(nap())))
        await wait_until(lambda: owls.running == 1, "the tool runs")
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
    stage.keys_live_seconds = 0.0

    model = RecitingModel("who knows")
    assert await stage.run(model) == "who knows"
    assert "nobody can know" in model.asked[0][-1]["content"]
    assert len(owls.calls("nap_once")) == 1


async def test_the_last_words_and_the_mark_are_written_together(stage: Stage) -> None:
    """A mark that cannot be written leaves no words: the turn comes again, and then both are there."""
    marks: list[str] = []

    def fails(_: Connection) -> None:
        raise RuntimeError("no mark")

    said = Said("wake", {"role": "user", "content": "woken"}, source_id="w1")
    turns = stage.turns(RecitingModel("one", "two"))
    with pytest.raises(RuntimeError):
        await turns.run(stage.talk, said, naming=str, finish=fails)
    written = await stage.contents()
    answer = await turns.run(stage.talk, said, naming=str, finish=lambda _: marks.append("done"))

    assert written == [("wake", "woken")]
    assert (answer, marks) == ("two", ["done"])


async def test_a_notice_is_told_once_and_not_to_the_model(stage: Stage) -> None:
    """It stands in the conversation for its user, however often it comes."""
    turns = stage.turns(RecitingModel())
    notice = Said("notice", {"role": "assistant", "content": "It is ready."}, source_id="w1")
    marks: list[Connection] = []
    for _ in range(2):
        await turns.tell(stage.talk, notice, marks.append)

    assert await stage.contents() == [("notice", "It is ready.")]
    assert len(marks) == 2


async def test_a_fleet_that_is_away_leaves_the_turn_open(
    stage: Stage, bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that surely did nothing for want of a queue is no result: the turn goes on when the fleet is back."""
    said = Said("user", {"role": "user", "content": "hello"}, source_id="m1")
    with faulty_redis(tmp_path / "redis") as redis:
        services = bed.settings.module_services
        monkeypatch.setattr("toolfleet_tasks.calls.dispatcher._PATIENCE_SECONDS", 0.5)
        settings = Settings(redis_url=redis.url, module_services=services)
        async with ToolFleet(settings=settings) as fleet:
            await fleet.modules.refresh()
            turns = replace(stage.turns(RecitingModel(nap())), fleet=fleet, calls=Calls(fleet, 0.5))
            with redis.restarted(), pytest.raises(FleetAway):
                await turns.run(stage.talk, said, naming=str)

    assert [source for source, _ in await stage.contents()] == ["user", "model"]
    assert await stage.run(RecitingModel("done")) == "done"
    assert [source for source, _ in await stage.contents()] == ["user", "model", "tools", "model"]


async def test_a_tool_that_fails_is_the_models_to_read(stage: Stage) -> None:
    """A failure is a result like any other."""
    model = RecitingModel([("owls.fail_once", {})], "I see")

    assert await stage.run(model) == "I see"
    assert model.asked[1][-1]["content"].startswith("Error: I cannot.")
