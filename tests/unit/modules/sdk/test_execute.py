"""What a module answers, whatever its tools do and its clients send."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from starlette.types import Message

from support.published_call import published
from support.waiting import wait_until, wait_until_answered
from support.workers.asgi_request import post
from toolfleet.sdk import Context, Module, ModuleBusy, ModuleClient, ModuleResult, ToolError
from toolfleet_registry.contracts.call_context import report
from toolfleet_workers.executors.reply import reason_of


class Nest(BaseModel):
    eggs: int
    found: datetime


@dataclass
class State:
    """What a test may see of the tools."""

    cancelled: bool = False
    sent: list[Message] | None = None

    def __post_init__(self) -> None:
        self.hanging = asyncio.Event()
        self.go = threading.Event()
        self.running = 0
        self.most = 0

    async def heard(self, text: str) -> None:
        """Wait until a line with the text was sent, where the test takes what is sent."""
        if (sent := self.sent) is not None:
            await wait_until(
                lambda: any(text.encode() in message.get("body", b"") for message in sent), f"{text} is sent"
            )


def make_owls(state: State, **settings: Any) -> Module:
    owls = Module("owls", **settings)
    for add in (add_plain_ones, add_raising_ones, add_odd_results):
        add(owls)
    add_waiting_ones(owls, state)
    add_reporting_ones(owls, state)
    return owls


def add_plain_ones(owls: Module) -> None:

    @owls.tool
    async def count(day: Annotated[int, Field(ge=1)], rows: list[int] | None = None) -> Any:
        return {"day": day, "rows": rows}

    @owls.tool
    async def whose(user_id: str | None) -> Any:
        return user_id

    @owls.tool
    async def mine(user_id: str) -> Any:
        return user_id


def add_raising_ones(owls: Module) -> None:
    @owls.tool
    async def refuse() -> Any:
        raise ToolError("Owls sleep by day.", effect_state="none")

    @owls.tool
    async def crash() -> Any:
        raise OSError("/secret/path is gone")

    @owls.tool
    async def crash_together() -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(crash())

    @owls.tool
    async def turn_away() -> Any:
        raise ModuleBusy(2.5)


def add_odd_results(owls: Module) -> None:
    @owls.tool
    async def bad(what: str) -> Any:
        values: dict[str, Any] = {"nan": float("nan"), "half": "\ud800", "object": object(), "endless": iter(int, 1)}
        deep: Any = 1
        for _ in range(150):
            deep = [deep]
        return {**values, "deep": deep, "large": "x" * 10_000}[what]

    @owls.tool
    async def rich() -> Any:
        return {"nest": Nest(eggs=3, found=datetime(2026, 5, 1, tzinfo=UTC)), "set": {1}}


def add_waiting_ones(owls: Module, state: State) -> None:
    @owls.tool
    async def hang() -> Any:
        state.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            state.cancelled = True

    @owls.tool
    def plain(context: Context) -> str:
        state.running += 1
        state.most = max(state.most, state.running)
        context.progress(0.5, "in a thread")
        state.go.wait()
        state.running -= 1
        return threading.current_thread().name


def add_reporting_ones(owls: Module, state: State) -> None:
    @owls.tool
    async def slow_words(context: Context) -> str:
        for step in range(200):
            await context.progress(step / 200, f"step {step}")
        await state.heard("step 199")
        report(7.0, "half \ud800 " + "a character" * 100)
        await state.heard("half")
        return "end"

    @owls.tool
    async def busy_in_the_middle(context: Context) -> str:
        await context.progress(0.1)
        raise ModuleBusy

    @owls.tool
    async def where(context: Context, platform: str = "none") -> Any:
        told = context.conversation.model_dump(exclude_none=True)
        return {"told": told, "platform": platform, "left": context.seconds_left, "id": context.call_id}


@pytest.fixture
def state() -> Iterator[State]:
    made = State()
    yield made
    made.go.set()


@pytest.fixture
async def owls(state: State) -> AsyncIterator[ModuleClient]:
    async with make_owls(state, max_result_bytes=9_000, progress_seconds=0.02, threads=3).client() as client:
        yield client


async def test_a_result_comes_back(owls: ModuleClient) -> None:
    """What the tool returns is the result, in the contract's four fields."""
    response = await owls.http.post("/execute", json={"tool_name": "owls.count", "arguments": {"day": 7}})

    assert response.json() == {
        "tool_name": "owls.count",
        "success": True,
        "result": {"day": 7, "rows": None},
        "error": None,
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "day: This argument is required."),
        ({"day": "soon"}, "day: Input should be a valid integer"),
        ({"day": 0}, "day: Input should be greater than or equal to 1."),
        ({"day": 1, "night": 2}, "night: There is no such argument."),
        ({"day": 1, "p1": [2]}, "p1: There is no such argument."),  # what the parameter is called inside
        ({"day": 1, "rows": ["x"] * 10_000}, "rows.3: Input should be a valid integer"),
        ({"day": 1, **{f"{'x' * 300}{n}": n for n in range(9)}}, "And more."),
    ],
)
async def test_wrong_arguments_are_named(owls: ModuleClient, arguments: dict[str, Any], told: str) -> None:
    """The model reads which argument is wrong and why, in few words however many are wrong, and no value."""
    result = await owls.send("count", arguments)

    assert (result.success, result.effect_state) == (False, "none")
    assert str(result.error).startswith("Invalid arguments for owls.count: ")
    assert told in str(result.error)
    assert "soon" not in str(result.error)
    assert len(str(result.error)) < 600


async def test_the_requests_user_counts(owls: ModuleClient) -> None:
    """A user id among the arguments is no argument; a tool that needs a user says so."""
    assert (await owls.send("whose", {}, user_id="ada")).result == "ada"
    assert (await owls.send("whose", {})).result is None
    assert "user_id: There is no such argument" in str((await owls.send("whose", {"user_id": "mallory"})).error)
    assert (await owls.send("mine", {}, user_id="ada")).result == "ada"
    assert "the call has none" in str((await owls.send("mine", {})).error)


async def test_what_the_core_tells_of_the_conversation_is_in_the_context(owls: ModuleClient) -> None:
    """The tool needs no parameters for it; one that it has gets it as well."""
    told = {"conversation_id": "c1", "platform": "matrix", "platform_channel_id": "!x"}
    result = await owls.send("where", told, call_id="one", seconds=20)

    assert result.result["told"] == told
    assert result.result["platform"] == "matrix"
    assert 15 < result.result["left"] <= 20
    assert result.result["id"] == "one"


async def test_a_refusal_is_told_in_the_tools_words(owls: ModuleClient) -> None:
    """`ToolError` is a failed call with its message, and with what it says of the effect."""
    result = await owls.call("refuse")
    assert (result.success, result.error, result.effect_state) == (False, "Owls sleep by day.", "none")


@pytest.mark.parametrize("tool", ["crash", "crash_together"])
async def test_a_crash_is_a_failed_call(owls: ModuleClient, tool: str, caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception is a failed call; its text, which may hold secrets, is in the log only."""
    result = await owls.call(tool)

    assert not result.success
    assert str(result.error).endswith("its log says why.")
    assert "secret" not in str(result.error)
    assert "/secret/path is gone" in caplog.text


@pytest.mark.parametrize("what", ["nan", "half", "object", "endless", "deep"])
async def test_a_result_that_is_no_json_is_a_failed_call(owls: ModuleClient, what: str) -> None:
    """What cannot be sent is reported, not half sent; and that the thing was done."""
    result = await owls.call("bad", what=what)
    assert "cannot be sent as JSON" in str(result.error)
    assert result.effect_state == "done"


async def test_a_result_that_is_too_large_is_a_failed_call(owls: ModuleClient) -> None:
    """The model is told to ask for less."""
    assert "more than 9000 bytes" in str((await owls.call("bad", what="large")).error)


async def test_models_dates_and_sets_are_results(owls: ModuleClient) -> None:
    """In their usual JSON."""
    assert (await owls.call("rich")).result == {"nest": {"eggs": 3, "found": "2026-05-01T00:00:00Z"}, "set": [1]}


async def test_a_busy_module_sends_the_fleet_away_for_a_while(owls: ModuleClient) -> None:
    """`ModuleBusy` is a 503 with `Retry-After`, in whole seconds."""
    result = await owls.call("turn_away")
    assert (result.status, result.retry_after_seconds, result.effect_state) == (503, 3, "none")


async def test_a_busy_module_names_no_status(owls: ModuleClient) -> None:
    """Its reply has words for the caller, who would else be shown the status of an answer that no service has sent."""
    answer = await owls.http.post("/execute", json={"tool_name": "owls.turn_away", "arguments": {}})
    call = published("owls.turn_away")

    assert reason_of(call, answer.content) == "Busy. Come back in 2.5 s."


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"not JSON", 422),
        (b"[]", 422),
        (b'{"arguments": {}}', 422),  # no name
        (b'{"tool_name": "owls.count", "arguments": [1]}', 422),
        (b'{"tool_name": "owls.count", "user_id": 7}', 422),
        (b'{"tool_name": "\\ud800"}', 422),  # half a character
        (b'{"tool_name": "owls.count", "arguments": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}", 422),
        (b"x" * (8 * 2**20 + 1), 413),
    ],
    ids=range(9),
)
async def test_a_request_that_breaks_the_contract_is_refused(owls: ModuleClient, body: bytes, status: int) -> None:
    """What is not a call is answered with why, and the module goes on."""
    response = await owls.http.post("/execute", content=body)
    assert response.status_code == status
    assert response.json()["detail"]
    assert (await owls.http.get("/health")).is_success


async def test_an_unknown_tool_is_a_failed_call(owls: ModuleClient) -> None:
    """The model is told which tools there are."""
    error = str((await owls.call("make_coffee")).error)
    assert "Unknown tool: 'owls.make_coffee'" in error
    assert "owls.count" in error


async def test_a_call_without_time_is_not_begun(owls: ModuleClient, state: State) -> None:
    """Nobody waits for it any more."""
    assert "was not begun in time" in str((await owls.send("hang", {}, seconds=0)).error)
    assert not state.hanging.is_set()


async def test_the_manifest_is_served_as_it_is(state: State) -> None:
    """Also where `null` means something, and with the fields that old agents read."""
    module = make_owls(state)

    @module.tool
    async def marked(mark: Literal[None, 3] | None = None) -> None: ...  # noqa: PYI061 - it makes a null in the schema

    async with module.client() as client:
        assert await client.manifest() == module.manifest
        document = (await client.http.get("/manifest")).json()
    (tool,) = (each for each in document["tools"] if each["name"] == "owls.count")
    assert {"name", "description", "parameters", "required_permission"} <= tool.keys()


async def test_only_post_executes(owls: ModuleClient) -> None:
    """What a link or a crawler sends does nothing."""
    for path in ("/execute", "/reconcile"):
        assert (await owls.http.get(path)).status_code == 405


async def test_a_tool_whose_time_is_over_is_cancelled(owls: ModuleClient, state: State) -> None:
    """`Toolfleet-Time-Left-Ms` bounds it, and how far it came is unknown."""
    result = await owls.send("hang", {}, seconds=0.5)

    assert "was stopped: its time was over" in str(result.error)
    assert result.effect_state == "unknown"
    assert state.cancelled


async def test_a_tool_whose_time_is_over_says_so_to_programs(owls: ModuleClient) -> None:
    """By the fleet's word, so that the call ends alike whichever of the two looks at its clock first."""
    body = {"tool_name": "owls.hang", "arguments": {}}
    answer = await owls.http.post("/execute", json=body, headers={"Toolfleet-Time-Left-Ms": "500"})

    assert (answer.json()["error_code"], answer.json()["effect_state"]) == ("timed_out", "unknown")


async def test_a_plain_tool_runs_in_a_thread_and_outlives_nobodys_patience(
    owls: ModuleClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer does not wait for a thread that does not end; what the thread comes to is remembered."""
    monkeypatch.setattr("toolfleet_modules.sdk.execute._GRACE_SECONDS", 0.1)
    monkeypatch.setattr("toolfleet_modules.calls.work._GRACE_SECONDS", 0.1)
    result = await owls.send("plain", {}, call_id="one", seconds=1)
    assert "was stopped" in str(result.error)
    assert (await owls.reconcile("one"))["state"] == "running"

    state.go.set()
    answer: dict[str, Any] = {}

    async def has_ended() -> bool:
        answer.update(await owls.reconcile("one"))
        return bool(answer["state"] != "running")

    await wait_until_answered(has_ended, "the thread has come to its end")
    assert answer["result"] == "tool plain"


async def test_plain_tools_wait_for_a_thread(owls: ModuleClient, state: State) -> None:
    """Three at once here; a call whose turn has not come in time has done nothing."""
    calls = [asyncio.create_task(owls.call("plain")) for _ in range(3)]
    await wait_until(lambda: state.running == 3, "three run")
    late = await owls.send("plain", {}, seconds=0.05)
    assert (late.error, late.effect_state) == ("owls.plain was not begun in time.", "none")

    state.go.set()
    assert all(result.success for result in await asyncio.gather(*calls))
    assert state.most == 3


async def test_threads_that_hang_are_not_waited_for(
    owls: ModuleClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where tools whose calls have ended hold all of them, a call is turned away long before its end, and not begun."""
    monkeypatch.setattr("toolfleet_modules.sdk.execute._GRACE_SECONDS", 0.1)
    monkeypatch.setattr("toolfleet_modules.calls.work._GRACE_SECONDS", 0.1)
    calls = [asyncio.create_task(owls.send("plain", {}, seconds=1)) for _ in range(3)]
    await wait_until(lambda: state.running == 3, "three run")
    assert all("was stopped" in str(result.error) for result in await asyncio.gather(*calls))
    late = await owls.send("plain", {}, seconds=1000)
    assert (late.status, late.effect_state) == (503, "none")

    state.go.set()
    assert (await owls.send("plain", {}, seconds=20)).success


async def test_a_thread_that_cannot_be_started_keeps_no_place(
    owls: ModuleClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is out of threads for a while: nothing was begun, and once it has some again everything goes on."""
    state.go.set()

    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        refused = [await owls.call("plain") for _ in range(4)]
    assert [(result.status, result.effect_state) for result in refused] == [(503, "none")] * 4
    assert (await owls.send("plain", {}, seconds=20)).success


async def test_a_flood_is_turned_away(state: State) -> None:
    """Beyond `concurrency` nothing is begun; what runs is not touched."""
    async with make_owls(state, concurrency=5).client() as client:
        calls = [asyncio.create_task(client.send("hang", {}, seconds=20)) for _ in range(5)]
        await state.hanging.wait()
        refused = list[ModuleResult]()
        for _ in range(4):  # what one wave had stopped would leave room for the next
            refused += await asyncio.gather(*(client.call("count", day=1) for _ in range(50)))
        assert not state.cancelled
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

        assert {result.status for result in refused} == {503}
        assert (await client.call("count", day=1)).success


async def test_progress_comes_before_the_reply(state: State) -> None:
    """Of much in a short time the latest, as lines of JSON that every reader can read."""
    module = make_owls(state, progress_seconds=0.02)
    messages = iter([{"type": "http.request", "body": b'{"tool_name": "owls.slow_words"}', "more_body": False}])

    async def receive() -> Any:
        return next(messages, None) or await asyncio.Event().wait()

    state.sent = []
    async with module.client():
        await post(module.app, "/execute", receive, [(b"accept", b"application/x-ndjson")], sent=state.sent)
    start, *bodies = state.sent
    content = b"".join(body.get("body", b"") for body in bodies)
    *before, last = [json.loads(line) for line in content.split(b"\n") if line]

    assert dict(start["headers"])[b"content-type"] == b"application/x-ndjson"
    assert last == {"tool_name": "owls.slow_words", "success": True, "result": "end", "error": None}
    assert 1 < len(before) < 15
    assert [set(line) for line in before] == [{"progress", "message"}] * len(before)
    assert before[-1]["progress"] == 1
    assert before[-1]["message"].startswith("half ? a char")
    assert len(before[-1]["message"]) == 500
    assert all(len(line) < 4096 for line in content.split(b"\n"))


async def test_progress_is_for_those_who_ask_for_it(owls: ModuleClient, state: State) -> None:
    """An old fleet gets the one object that it expects; and a call without progress is no stream for a new one."""
    response = await owls.http.post("/execute", json={"tool_name": "owls.slow_words"})
    assert response.headers["content-type"] == "application/json"
    assert response.json()["result"] == "end"
    quick = await owls.http.post(
        "/execute", json={"tool_name": "owls.whose"}, headers={"Accept": "application/x-ndjson"}
    )
    assert quick.headers["content-type"] == "application/json"
    state.go.set()
    assert (await owls.call("plain")).progress == ((0.5, "in a thread"),)


async def test_a_module_that_is_busy_after_some_progress_says_so_in_its_last_line(owls: ModuleClient) -> None:
    """The status has been sent by then."""
    result = await owls.call("busy_in_the_middle")
    assert (result.progress[0], result.error, result.effect_state) == ((0.1, ""), "Busy. Come back in 1 s.", "none")


async def test_a_client_that_hangs_up_cancels_its_call(state: State) -> None:
    """The tool is cancelled, and the module counts it."""
    module = make_owls(state)
    async with module.client() as client:
        await _hang_up(module, after=b'{"tool_name": "owls.hang"}')
        assert state.cancelled
        health = (await client.http.get("/health")).json()
        assert (health["running"], health["cancelled"]) == (0, 1)


async def test_a_client_that_hangs_up_early_starts_nothing(state: State) -> None:
    """Half a request is no call."""
    module = make_owls(state)
    async with module.client() as client:
        await _hang_up(module, after=b'{"tool_name": "ow', more=True)
        assert (await client.http.get("/health")).json()["cancelled"] == 0
    assert not state.hanging.is_set()


async def test_a_module_that_ends_stops_its_calls(state: State) -> None:
    """Nothing runs on when the app has shut down."""
    module = make_owls(state)
    async with module.client() as client:
        call = asyncio.create_task(client.send("hang", {}))
        await state.hanging.wait()
        call.cancel()
    assert state.cancelled
    await asyncio.wait({call})


async def test_hooks_run_around_the_calls() -> None:
    """Startup in the order in which they were named, shutdown in the other one."""
    module = Module("owls")
    seen: list[str] = []
    module.on_startup(lambda: seen.append("up"))

    @module.on_startup
    async def up_too() -> None:
        seen.append("up too")

    module.on_shutdown(lambda: seen.append("down"))
    async with module.client():
        assert seen == ["up", "up too"]
    assert seen == ["up", "up too", "down"]


async def _hang_up(module: Module, *, after: bytes, more: bool = False) -> None:
    """Send a request as a server would, then the news that the client is gone."""
    messages = iter([{"type": "http.request", "body": after, "more_body": more}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        await asyncio.sleep(0)
        return next(messages)

    await post(module.app, "/execute", receive)
