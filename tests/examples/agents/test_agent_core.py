"""The core over HTTP: what bots send, what the fleet sends, and what it answers when it cannot act now."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from pydantic import SecretStr

from agent_core.app import create_app
from agent_core.settings import AgentSettings
from modules.files import open_pipeline
from support.core.core_bot import SECRET, Bot, Open, wake_up
from support.core.reciting_model import Line
from support.fleet import TestBed
from support.module_server import ModuleServer, holding
from support.waiting import wait_until


async def test_a_message_is_answered_in_its_conversation(opened: Open) -> None:
    """The same user at the same place goes on; the conversation can be read."""
    async with opened("hi", "still here") as bot:
        replies = [(await bot.say(text, platform="chat")).json() for text in ("hello", "and now?")]
        said = await bot.said(replies[0]["conversation_id"])
        missing = await bot.http.get("/conversations/nothing")

    assert replies[0]["conversation_id"] == replies[1]["conversation_id"]
    assert said == [("user", "hello"), ("model", "hi"), ("user", "and now?"), ("model", "still here")]
    assert missing.status_code == 404


async def test_a_wake_up_re_enters_its_conversation_after_a_restart_of_the_core(opened: Open) -> None:
    """Another process finds the conversation by its id, and its model sees all that was said, and the job's result."""
    async with opened("I begin") as bot:
        conversation_id = await bot.begin()
    async with opened("done") as bot:
        answer = await bot.wake(conversation_id, result={"workspace": "/w"})
        said = await bot.said(conversation_id)
        model = bot.app.state.core.turns.model

    assert answer.status_code == 204
    assert [source for source, _ in said] == ["user", "model", "wake", "model"]
    assert [message["role"] for message in model.asked[0]] == ["user", "assistant", "user"]
    assert json.loads(model.asked[0][2]["content"].splitlines()[-1])["result"] == {"workspace": "/w"}


async def test_a_wake_up_that_comes_again_is_acted_on_once(opened: Open, owls: ModuleServer) -> None:
    """Repeats, side by side and later, also to another process: one turn, one call; who comes in between is told to come again."""
    async with opened("hi", [("owls.nap_once", {"seconds": 0})], "done") as bot:
        conversation_id = await bot.begin()
        with holding(owls, "nap_once") as release:
            wakes = [asyncio.create_task(bot.wake(conversation_id)) for _ in range(4)]
            await wait_until(lambda: sum(wake.done() for wake in wakes) == 3, "one is left that acts")
            release()
            together = await asyncio.gather(*wakes)
        later = await bot.wake(conversation_id)
    async with opened() as bot:
        elsewhere = await bot.wake(conversation_id)
        said = await bot.said(conversation_id)

    statuses = [answer.status_code for answer in together]
    assert statuses.count(204) == 1
    assert statuses.count(409) == 3
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in together if answer.status_code == 409)
    assert (later.status_code, elsewhere.status_code) == (204, 204)
    assert len(owls.calls("nap_once")) == 1
    assert [source for source, _ in said].count("wake") == 1


async def test_a_wake_up_during_a_turn_is_told_to_come_again(opened: Open, owls: ModuleServer) -> None:
    """One turn at a time: 409 with Retry-After while a user's turn runs, and then it is acted on."""
    async with opened("hi", [("owls.nap", {"seconds": 0})], "slept", "done") as bot:
        conversation_id = await bot.begin()
        with holding(owls, "nap"):
            turn = asyncio.create_task(bot.say("sleep"))
            await wait_until(lambda: owls.running, "a turn is under way")
            early = await bot.wake(conversation_id)
        await turn
        late = await bot.wake(conversation_id)
        said = await bot.said(conversation_id)

    assert (early.status_code, late.status_code) == (409, 204)
    assert int(early.headers["Retry-After"]) >= 1
    assert [text for _, text in said[-2:]] == [said[-2][1], "done"]


async def test_a_users_message_waits_for_a_turn_that_is_under_way(opened: Open, owls: ModuleServer) -> None:
    """Within the core's patience both are answered, one after the other; beyond it the bot is told to come again."""
    nap: Line = [("owls.nap", {"seconds": 0.5})]
    async with opened(nap, "first", "second", patience_seconds=30) as bot:
        with holding(owls, "nap"):
            turn = asyncio.create_task(bot.say("one"))
            await wait_until(lambda: owls.running, "a turn is under way")
            second = asyncio.create_task(bot.say("two"))
        assert ((await turn).json()["text"], (await second).json()["text"]) == ("first", "second")
    async with opened(nap, "first", patience_seconds=0.1) as bot:
        with holding(owls, "nap"):
            turn = asyncio.create_task(bot.say("one"))
            await wait_until(lambda: owls.running, "a turn is under way")
            assert (await bot.say("two")).status_code == 409
        await turn


async def test_a_notice_is_told_without_the_model(opened: Open) -> None:
    """`/notify` puts the message into the conversation, once."""
    async with opened("hi") as bot:
        conversation_id = await bot.begin()
        answers = [await bot.wake(conversation_id, "/notify", wake_id="j1.notify") for _ in range(2)]
        said = await bot.said(conversation_id)

    assert [answer.status_code for answer in answers] == [204, 204]
    assert said[2:] == [("notice", "Ready.")]


async def test_a_wake_up_without_a_conversation_finds_one_by_its_place(opened: Open) -> None:
    """User and platform name it, as for a user's message."""
    async with opened("hi", "done") as bot:
        conversation_id = (await bot.say(platform="chat")).json()["conversation_id"]
        assert (await bot.wake(None, platform="chat")).status_code == 204
        assert [source for source, _ in await bot.said(conversation_id)] == ["user", "model", "wake", "model"]


async def test_who_is_not_the_fleet_wakes_nobody(opened: Open) -> None:
    """Another secret, a changed body, an old message, a notice, no headers: 401. Another user's or no conversation: 404."""
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    async with opened("hi") as bot:
        conversation_id = await bot.begin()
        headers, body = wake_up(conversation_id)
        refused = [
            await bot.wake(conversation_id, secret=other),
            await bot.wake(conversation_id, late=3600),
            await bot.wake(conversation_id, kind="notify"),
            await bot.http.post("/continue", content=body.replace(b"Ready", b"Never"), headers=headers),
            await bot.http.post("/continue", content=body),
            await bot.http.post("/notify", json={}),
        ]
        foreign = await bot.wake(conversation_id, user_id="bob")
        unknown = await bot.wake("nothing", wake_id="j2")
        said = await bot.said(conversation_id)

    assert [answer.status_code for answer in refused] == [401] * 6
    assert (foreign.status_code, unknown.status_code) == (404, 404)
    assert len(said) == 2


async def test_a_model_that_is_away_leaves_the_wake_up_for_later(opened: Open) -> None:
    """503 with Retry-After; the next delivery is acted on, and what was said is there once."""
    async with opened("hi") as bot:
        conversation_id = await bot.begin()
        away = await bot.wake(conversation_id)
    async with opened("done") as bot:
        there = await bot.wake(conversation_id)
        said = await bot.said(conversation_id)

    assert (away.status_code, there.status_code) == (503, 204)
    assert "Retry-After" in away.headers
    assert [source for source, _ in said] == ["user", "model", "wake", "model"]


@pytest.mark.fleet
async def test_a_turn_that_takes_too_long_is_left_for_later(opened: Open, owls: ModuleServer) -> None:
    """Its time is bounded; what it had begun is found by the next delivery."""
    async with opened("hi", [("owls.nap_once", {"seconds": 0})], turn_seconds=1) as bot:
        conversation_id = await bot.begin()
        with holding(owls, "nap_once"):
            late = await bot.wake(conversation_id)
    async with opened("done") as bot:
        there = await bot.wake(conversation_id)

    assert (late.status_code, there.status_code) == (503, 204)
    assert len(owls.calls("nap_once")) == 1


async def test_an_upload_is_listed_for_its_user_only(opened: Open, tmp_path: Path) -> None:
    """A file sent along is registered by the file modules' own function; the model is told of it."""
    content = base64.b64encode(b"day,owls\n1,7\n").decode()
    async with opened("thanks") as bot:
        sent = await bot.say("look", files=[{"name": "owls.csv", "content_base64": content}])
        said = await bot.said(sent.json()["conversation_id"])
    async with open_pipeline() as files:
        (mine,), others = await files.list("ada"), await files.list("bob")

    assert (mine.name, mine.size, mine.source) == ("owls.csv", 13, "upload")
    assert others == []
    assert said[0][1] == "look\n(A file is attached: 'owls.csv', 13 bytes.)"


async def test_a_message_that_comes_again_leaves_its_file_as_it_is_by_then(opened: Open) -> None:
    """What was sent along does not replace what has become of it since, in this core or after a restart; the answer is the same."""
    sent = {"message_id": "m1", "files": [{"name": "owls.csv", "content_base64": base64.b64encode(b"sent").decode()}]}
    async with opened("thanks") as bot, open_pipeline() as files:
        first = await bot.say("look", **sent)
        await files.save("ada", "owls.csv", b"changed", "file_manager")
        again = await bot.say("look", **sent)
    async with opened() as bot, open_pipeline() as files:
        later = await bot.say("look", **sent)
        said = await bot.said(first.json()["conversation_id"])

        assert await files.read("ada", "owls.csv") == b"changed"
    assert first.json()["text"] == "thanks"
    assert again.json() == later.json() == first.json()
    assert said == [("user", "look\n(A file is attached: 'owls.csv', 4 bytes.)"), ("model", "thanks")]


async def test_a_file_is_registered_after_a_turn_that_was_cut_off(opened: Open) -> None:
    """As its message is taken in: while the one before it has no answer, nothing is registered that a repeat would put back."""
    sent = {"message_id": "m2", "files": [{"name": "owls.csv", "content_base64": base64.b64encode(b"sent").decode()}]}
    async with opened() as bot, open_pipeline() as files:
        away = [await bot.say("one", message_id="m1"), await bot.say("two", **sent)]
        early = await files.list("ada")
    async with opened("first", "second") as bot, open_pipeline() as files:
        reply = await bot.say("two", **sent)
        said = await bot.said(reply.json()["conversation_id"])

        assert await files.read("ada", "owls.csv") == b"sent"
    assert ([answer.status_code for answer in away], early) == ([503, 503], [])
    assert reply.json()["text"] == "second"
    assert [source for source, _ in said] == ["user", "model", "user", "model"]


@pytest.mark.parametrize(
    "body",
    [
        {"text": "who am I?"},
        {"user_id": "", "text": "nobody"},
        {"user_id": "ada", "text": "x", "unknown": 1},
        {"user_id": "ada", "text": "x", "files": [{"name": "a", "content_base64": "?"}]},
        {"user_id": "ada", "text": "x", "files": [{"name": "../a", "content_base64": ""}]},  # the pipeline's refusal
        [],
    ],
)
async def test_a_bad_message_gets_one_clear_error(opened: Open, body: object) -> None:
    """422, and no model is asked."""
    async with opened() as bot:
        assert (await bot.http.post("/message", json=body)).status_code == 422


async def test_what_is_too_large_is_not_read(opened: Open) -> None:
    """Messages and wake-ups have a limit each: 413."""
    async with opened(max_upload_bytes=100) as bot:
        assert (await bot.say("x" * 200)).status_code == 413
        assert (await bot.http.post("/continue", content=b"x" * 2**21)).status_code == 413


async def test_a_core_with_a_token_answers_bots_that_have_it(opened: Open) -> None:
    """Messages and conversations need it; wake-ups are signed, and health is nobody's secret."""
    async with opened("hi", token=SecretStr("s3cret")) as bot:
        nobody = await bot.say()
        somebody = await bot.http.post(
            "/message", json={"user_id": "ada", "text": "hello"}, headers={"Authorization": "Bearer s3cret"}
        )
        peek = await bot.http.get(f"/conversations/{somebody.json()['conversation_id']}")
        health = await bot.http.get("/health")

    assert [answer.status_code for answer in (nobody, somebody, peek, health)] == [401, 200, 401, 200]


async def test_two_cores_in_one_conversation_do_nothing_twice(opened: Open, owls: ModuleServer) -> None:
    """Both wait for the call that the first has begun; who writes second begins anew, and both messages are answered."""
    nap: Line = [("owls.nap_once", {"seconds": 1.0})]
    async with opened(nap, *["first"] * 5) as one, opened(*["second"] * 5) as two:
        turn = asyncio.create_task(one.say("one"))
        await wait_until(lambda: owls.calls("nap_once"), "the first is at it")
        answers = [await two.say("two"), await turn]
        said = await two.said(answers[0].json()["conversation_id"])

    sources = [source for source, _ in said]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.json()["text"] for answer in answers} <= {text for source, text in said if source == "model"}
    assert (sources.count("user"), sources.count("tools"), sources[-1]) == (2, 1, "model")
    assert len(owls.calls("nap_once")) == 1


async def test_two_cores_act_on_a_wake_up_once(opened: Open, owls: ModuleServer) -> None:
    """Delivered to both at once, and again: one of them acts, and the other is told to come again or that it was done."""
    nap: Line = [("owls.nap_once", {"seconds": 0})]
    async with opened("hi", nap, "done") as one, opened(nap, "done") as two:
        conversation_id = await one.begin()
        with holding(owls, "nap_once") as release:
            wakes = [asyncio.create_task(bot.wake(conversation_id)) for bot in (one, two)]
            await wait_until(lambda: any(wake.done() for wake in wakes), "one is left that acts")
            release()
            both = await asyncio.gather(*wakes)
        again = [await bot.wake(conversation_id) for bot in (one, two)]

    assert sorted(answer.status_code for answer in both) == [204, 409]
    assert [answer.status_code for answer in again] == [204, 204]
    assert len(owls.calls("nap_once")) == 1


async def test_a_core_with_a_models_address_asks_that_model(
    bed: TestBed, worker: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`AGENT_MODEL_URL`, `_NAME` and `_KEY` put a real model in the script's place; its tool calls are run."""
    seen: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.Response:
        seen.append(await request.json())
        name = "owls__echo"
        asked = {"id": "x1", "type": "function", "function": {"name": name, "arguments": '{"n": 1}'}}
        said = {"content": "Seven."} if len(seen) > 1 else {"content": None, "tool_calls": [asked]}
        return web.json_response({"choices": [{"message": {"role": "assistant", **said}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("AGENT_MODEL_URL", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    monkeypatch.setenv("AGENT_MODEL_NAME", "owl-1")
    monkeypatch.setenv("AGENT_DATABASE_URL", f"sqlite:///{tmp_path / 'agent.db'}")
    core = create_app(AgentSettings(), bed.settings.model_copy(update={"core_secret": SECRET}))
    try:
        async with (
            core.router.lifespan_context(core),
            httpx.AsyncClient(transport=httpx.ASGITransport(core), base_url="http://core") as http,
        ):
            reply = await Bot(http, core).say("how many owls?")
    finally:
        await runner.cleanup()

    assert reply.json()["text"] == "Seven."
    assert "owls__echo" in [tool["function"]["name"] for tool in seen[0]["tools"]]
    assert [message["role"] for message in seen[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert seen[1]["messages"][-1]["content"] == '{"n":1}'
