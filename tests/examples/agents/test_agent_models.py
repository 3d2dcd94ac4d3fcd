"""The core's two models: the script, and whatever speaks the Chat Completions API."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agent_core.bodies import MessageOut
from agent_core.history import Said
from agent_core.models import openai_compatible_model
from agent_core.models.model import Answer, ModelAway
from agent_core.models.openai_compatible_model import OpenAICompatibleModel
from agent_core.models.scripted_model import ScriptedModel
from agent_core.wording import facts_of, wake_message
from support.modules.raw_modules import Behaviour, raw_module, trickling
from support.waiting import PATIENCE_SECONDS
from toolfleet import ToolCall, ToolDefinition, ToolResult
from toolfleet.formats import from_result
from toolfleet_registry.contracts.jobs import WakeUp

NAMES = ("claude_code.run_task", "scheduler.add_job", "deployer.deploy", "file_manager.list_files")
TOOLS = [ToolDefinition(name=name) for name in NAMES]
USER = {"role": "user", "content": "Build me a site about owls and deploy it."}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def woken(kind: str = "job.completed", **fields: Any) -> dict[str, Any]:
    wake = WakeUp.model_validate(
        {"type": kind, "wake_id": "j1", "job_id": "j1", "timestamp": 1, "message": "The site is ready.", **fields}
    )
    return wake_message(wake)


async def told(history: list[dict[str, Any]], answer: Answer, result: Any) -> Answer:
    """What the script says once it has read the result of its call."""
    (call,) = answer.calls
    outcome = result if isinstance(result, ToolResult) else ToolResult.ok(call.tool_name, result)
    reply = from_result(outcome, "openai_chat", answer.body["tool_calls"][0]["id"])
    history += [answer.body, reply]
    return await ScriptedModel().answer(history, TOOLS)


async def test_the_script_builds_and_has_a_job_wake_it() -> None:
    """It starts the task, has its status polled until its conversation is resumed, and ends its turn."""
    history = [USER]
    run = await ScriptedModel().answer(history, TOOLS)
    job = await told(history, run, {"task_id": "t1", "workspace": "/w/t1"})
    words = await told(history, job, {"job_id": "j1"})

    assert run.calls == (ToolCall(tool_name="claude_code.run_task", arguments={"prompt": USER["content"]}),)
    (add,) = job.calls
    assert add.tool_name == "scheduler.add_job"
    assert add.arguments["on_complete"] == "resume_conversation"
    assert "t1" in json.dumps(add.arguments)
    assert words.calls == ()
    assert "You need not wait" in words.text


async def test_the_script_deploys_what_the_wake_up_brings() -> None:
    """The workspace of the job's result is what it deploys, and the URL what it answers with."""
    history = [USER, woken(result={"status": "completed", "workspace": "/w/t1"})]
    deploy = await ScriptedModel().answer(history, TOOLS)
    words = await told(history, deploy, {"url": "http://127.0.0.1:9"})

    assert deploy.calls == (ToolCall(tool_name="deployer.deploy", arguments={"project_path": "/w/t1"}),)
    assert words.text == "Your site is ready: http://127.0.0.1:9"


@pytest.mark.parametrize(
    "wake",
    [
        woken("job.failed", error="The task failed."),  # no result at all
        woken("job.failed", error="The task failed.", result={"workspace": "/w/t1"}),  # not completed
        woken("job.timed_out"),
        woken(result="nothing useful"),
    ],
)
async def test_the_script_deploys_nothing_that_is_not_ready(wake: dict[str, Any]) -> None:
    """A job that did not complete, or whose result names no workspace, ends in words."""
    answer = await ScriptedModel().answer([USER, wake], TOOLS)

    assert answer.calls == ()
    assert answer.text.startswith("It could not be built")


async def test_the_script_calls_only_what_it_is_offered_and_reads_errors() -> None:
    """As a real model would: a tool it was not offered it asks for in words, and a failure it tells."""
    missing = await ScriptedModel().answer([USER], [])
    history = [USER]
    run = await ScriptedModel().answer(history, TOOLS)
    failed = await told(history, run, ToolResult.refused("claude_code.run_task", "permission_denied", "Not you."))

    assert missing.calls == ()
    assert "claude_code.run_task" in missing.text
    assert failed.text == "That did not work: Not you."


def test_a_wake_up_is_told_from_a_users_words() -> None:
    """Its facts are the JSON in its last line; a user who says the same is a user."""
    wake = woken(result="two\nlines\u2028", message="Ready.\nReally.")

    assert facts_of(wake) == {"type": "job.completed", "job_id": "j1", "result": "two\nlines\u2028"}
    assert facts_of({"role": "user", "content": wake["content"]}) is None


@asynccontextmanager
async def server(handler: Handler) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def model_at(url: str, seconds: float) -> AsyncGenerator[OpenAICompatibleModel]:
    model = OpenAICompatibleModel(f"{url}/", "owl-1", "secret", instructions="Be kind.", seconds=seconds)
    try:
        yield model
    finally:
        await model.close()


@asynccontextmanager
async def model_of(handler: Handler) -> AsyncGenerator[OpenAICompatibleModel]:
    async with server(handler) as url, model_at(url, seconds=10) as model:
        yield model


async def test_a_request_has_instructions_history_and_tools_and_a_tool_call_comes_back() -> None:
    """The server sees the API's own form; what it answers is a call of ours by the tool's own name."""
    seen: list[tuple[dict[str, Any], str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((await request.json(), request.headers["Authorization"]))
        name = seen[0][0]["tools"][0]["function"]["name"]
        function = {"name": name, "arguments": '{"prompt": "owls"}'}
        asked = [{"id": "x1", "type": "function", "function": function, "index": 0}]
        message = {"role": "assistant", "content": None, "tool_calls": asked, "reasoning": "hm"}
        return web.json_response({"choices": [{"message": message}]})

    async with model_of(handler) as model:
        answer = await model.answer([USER], TOOLS[:1])

    ((body, authorization),) = seen
    assert authorization == "Bearer secret"
    assert body["model"] == "owl-1"
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, USER]
    assert answer.calls == (ToolCall(tool_name="claude_code.run_task", arguments={"prompt": "owls"}),)
    assert set(answer.body["tool_calls"][0]) == {"id", "type", "function"}  # what others would refuse is not kept


async def test_words_are_words() -> None:
    """An answer without tool calls is text, and no `tools` are sent if there are none."""

    async def handler(request: web.Request) -> web.Response:
        assert "tools" not in await request.json()
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "Hello."}}]})

    async with model_of(handler) as model:
        assert await model.answer([USER], []) == Answer({"role": "assistant", "content": "Hello."})


async def test_words_in_parts_are_words() -> None:
    """Some servers send a list of parts; half a character, which nobody could show, becomes a question mark."""

    async def handler(_: web.Request) -> web.Response:
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo \ud800."}]
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": parts}}]})

    async with model_of(handler) as model:
        assert (await model.answer([USER], [])).text == "Hello ?."


async def test_a_conversation_can_be_read_whatever_a_model_has_said() -> None:
    """Words that are none are left out."""
    odd: list[Any] = [[{"type": "text", "text": "hello"}], {"a": 1}, 7, None]

    assert [MessageOut.of(Said("model", {"content": content})).text for content in odd] == [""] * 4


async def test_an_answer_that_asks_for_everything_is_cut() -> None:
    """It has a bounded place in the history, and each of its calls one of the results."""

    async def handler(_: web.Request) -> web.Response:
        asked = [{"id": str(n), "function": {"name": "a_b", "arguments": "{}"}} for n in range(5000)]
        return web.json_response({"choices": [{"message": {"content": None, "tool_calls": asked}}]})

    async with model_of(handler) as model:
        answer = await model.answer([USER], TOOLS)

    assert len(answer.calls) == len(answer.body["tool_calls"]) == 128


async def test_an_answer_without_end_is_read_no_further_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused while it still comes."""
    monkeypatch.setattr(openai_compatible_model, "_MAX_REPLY_BYTES", 1000)

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b" " * 2000)
        await asyncio.Event().wait()
        return response

    async with model_of(handler) as model:
        with pytest.raises(ModelAway, match="more than 1000 bytes"):
            await model.answer([USER], TOOLS)


FAILING = {
    "refuses": (429, "slow down"),
    "talks HTML": (200, "<html>"),
    "has no choices": (200, '{"choices": []}'),
    "says a list": (200, "[1]"),
    "calls nothing": (200, '{"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}'),
    "says no text": (200, '{"choices": [{"message": {"content": {"text": "hello"}}}]}'),
    "is deep": (200, "[" * 100_000),
}


@pytest.mark.parametrize(("status", "text"), FAILING.values(), ids=FAILING)
async def test_a_server_that_fails_is_a_model_that_is_away(status: int, text: str) -> None:
    """Whatever it says, the turn may be tried again."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="application/json")

    async with model_of(handler) as model:
        with pytest.raises(ModelAway):
            await model.answer([USER], TOOLS)


async def _stay_silent(_: bytes, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


LATE = {"is silent": _stay_silent, "trickles": trickling(b"HTTP/1.1 200 OK\r\n\r\n", b" ")}


@pytest.mark.parametrize("behave", LATE.values(), ids=LATE)
async def test_a_server_that_is_late_is_a_model_that_is_away(behave: Behaviour) -> None:
    """The turn hears of it within its time."""
    async with raw_module(behave) as url, model_at(url, seconds=0.5) as model, asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(ModelAway):
            await model.answer([USER], TOOLS)


async def test_no_server_is_a_model_that_is_away() -> None:
    """Nothing listens there."""
    model = OpenAICompatibleModel("http://127.0.0.1:9/v1", "owl-1", None, instructions="", seconds=2)
    try:
        with pytest.raises(ModelAway):
            await model.answer([USER], TOOLS)
    finally:
        await model.close()
