"""A call goes from an agent through the queue to a module and back."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import ModuleServer, holding
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, Conversation, ToolCall, ToolFleet
from toolfleet_registry.settings import Settings


def call(method: str, **arguments: Any) -> ToolCall:
    return ToolCall(tool_name=f"owls.{method}", arguments=arguments)


async def test_a_result_comes_back(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """The module runs the call, and the agent learns what it said and what the fleet saw."""
    result = await fleet.call(call("echo", text="hu"), owner)

    assert (result.success, result.result, result.effect_state, result.error) == (True, {"text": "hu"}, "done", None)
    assert (result.audit.attempts, result.audit.tool) == (1, "owls.echo")
    assert result.audit.queued_ms is not None
    assert result.audit.duration_ms is not None
    assert result.audit.worker


async def test_data_passes_unchanged(fleet: ToolFleet, owner: Caller) -> None:
    """Dictionaries that look like kombu's own, odd characters and large numbers come back as they went."""
    arguments = {
        "date": {"__type__": "datetime", "__value__": "2020-01-01T00:00:00"},
        "unknown": [{"__type__": "nonsense", "__value__": 1}],
        "text": "🦉\u2028\x00",
        "number": 2**70,
    }
    result = await fleet.call(ToolCall(tool_name="owls.echo", arguments=arguments), owner)

    assert result.result == arguments


async def test_the_module_learns_who_asks_and_how_long_it_has(
    fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """The caller's user id wins over the call's; the call's id and the time left are in the headers."""
    forged = ToolCall(tool_name="owls.echo", user_id="somebody else")
    result = await fleet.call(forged, owner, timeout=9)

    assert owls.requests == [{"tool_name": "owls.echo", "arguments": {}, "user_id": "ada"}]
    assert owls.headers[0]["idempotency-key"] == result.audit.call_id
    assert 0 < int(owls.headers[0]["toolfleet-time-left-ms"]) <= 9000


async def test_a_conversations_fields_reach_context_modules(
    bed: TestBed, worker: WorkerProcess, owner: Caller, owls: ModuleServer
) -> None:
    """A context module learns on which platform the conversation runs, whatever the model wrote."""
    settings = bed.settings.model_copy(update={"context_modules": frozenset({"owls"})})
    conversation = Conversation(conversation_id="c", platform="chat", platform_channel_id="7")
    async with ToolFleet(settings=settings) as fleet:
        result = await fleet.call(call("echo", platform="forged", text="x"), owner, conversation=conversation)

    assert result.result == {"platform": "chat", "platform_channel_id": "7", "text": "x"}


async def test_calls_run_side_by_side(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Many calls of one agent are in flight at once, and the results come in order."""
    calls = [call("echo", number=number) for number in range(200)]
    with holding(owls, "echo") as release:
        calling = asyncio.create_task(fleet.call_many(calls, owner))
        await wait_until(lambda: owls.running > 100, "more than a hundred are in flight")
        release()
        results = await calling

    assert [result.result for result in results] == [{"number": number} for number in range(200)]
    assert len(owls.calls("echo")) == 200


@pytest.mark.parametrize(
    ("bad", "code", "error"),
    [
        (
            ToolCall(tool_name="owls"),
            "invalid_tool_name",
            "Invalid tool name format: owls. Expected 'module.tool_name'.",
        ),
        (ToolCall(tool_name="cats.purr"), "unknown_module", "Unknown module: cats"),
        (ToolCall(tool_name="owls.purr"), "unknown_tool", "Unknown tool: owls.purr"),
        (ToolCall(tool_name="owls.echo", arguments=["no", "object"]), "invalid_arguments", None),
        (ToolCall(tool_name="owls.echo", arguments={"x": float("nan")}), "invalid_arguments", None),
        (ToolCall(tool_name="owls.echo", arguments={"x": object()}), "invalid_arguments", None),
        (
            ToolCall(tool_name="owls.admin_only"),
            "permission_denied",
            "Tool 'owls.admin_only' needs 'admin'; caller is 'user'.",
        ),
    ],
)
async def test_a_bad_call_is_refused_and_never_published(
    fleet: ToolFleet, owls: ModuleServer, bad: ToolCall, code: str, error: str | None
) -> None:
    """The agent gets a clear result at once; the module sees nothing."""
    result = await fleet.call(bad, Caller(permission="user", allowed_modules="*"))

    assert (result.success, result.error_code, result.effect_state) == (False, code, "none")
    assert result.error
    assert error is None or result.error == error
    assert owls.requests == []


async def test_a_module_that_is_not_allowed_is_refused(fleet: ToolFleet, owls: ModuleServer) -> None:
    """A caller reaches its own modules only; a guest that names none reaches those of the settings."""
    for caller in (Caller(), Caller(permission="owner", allowed_modules=frozenset({"cats"}))):
        assert (await fleet.call(call("echo"), caller)).error_code == "permission_denied"
        assert await fleet.tools(caller) == []
    assert owls.requests == []


@pytest.mark.parametrize(
    ("method", "attempts", "code", "retryable"),
    [
        ("fail", 1, "module_error", False),  # it has answered: perhaps it charged, and could not mail the receipt
        ("fail_once", 1, "module_error", False),
        ("turn_away", 2, "busy", True),  # nothing was started, so also a once-only tool may try again
        ("garble", 1, "invalid_response", False),  # sent, and no readable answer: never repeated
        ("garble_read", 2, "invalid_response", True),
    ],
)
async def test_a_failed_attempt_is_retried_only_where_it_does_no_harm(
    fleet: ToolFleet, owner: Caller, owls: ModuleServer, method: str, attempts: int, code: str, retryable: bool
) -> None:
    """The tool's declared effect and what was seen decide about the one retry."""
    result = await fleet.call(call(method), owner)

    assert (result.success, result.error_code, result.retryable) == (False, code, retryable)
    assert len(owls.calls(method)) == attempts
    assert result.audit.attempts == attempts


async def test_a_retry_can_succeed(fleet: ToolFleet, owner: Caller, owls: ModuleServer, worker: WorkerProcess) -> None:
    """A failure that passes, as its module says, is not seen by the agent, but counted; the worker warns, and says why."""
    calls = 0

    async def second_time_lucky(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return (
            {"success": True, "result": calls}
            if calls > 1
            else {"success": False, "error": "not yet", "retryable": True}
        )

    owls.tools["owls.fail"], before = second_time_lucky, owls.tools["owls.fail"]
    try:
        result = await fleet.call(call("fail"), owner)
    finally:
        owls.tools["owls.fail"] = before

    assert (result.success, result.result) == (True, 2)
    warned = [line for line in worker.said().splitlines() if "tool_call_failed_retrying" in line]
    assert any("owls.fail" in line and "not yet" in line and "warning" in line for line in warned)


async def test_a_tools_own_limit_ends_the_request(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """The limit of the manifest travels with the call; the module's request is really ended."""
    result = await fleet.call(call("brief_nap", seconds=30), owner)

    assert (result.error_code, result.error, result.effect_state) == (
        "timed_out",
        "Tool execution timed out (0.3s).",
        "unknown",
    )
    await wait_until(lambda: owls.interrupted, "the module has seen the caller hang up")


async def test_a_deadline_ends_a_running_call(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """The caller's own deadline bounds the run; what happened is not known."""
    result = await fleet.call(call("nap_once", seconds=30), owner, timeout=3)

    assert (result.error_code, result.effect_state, result.retryable) == ("timed_out", "unknown", False)
    await wait_until(lambda: owls.interrupted, "the module has seen the caller hang up")


async def test_a_running_call_can_be_cancelled(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """`cancel` interrupts the module's request, and the result says so."""
    handle = await fleet.submit(call("nap_once", seconds=30), owner)
    await wait_until(lambda: owls.running, "the module has the call")
    assert await handle.status() == "running"
    await handle.cancel()
    result = await handle.result(PATIENCE_SECONDS)

    assert (result.error_code, result.effect_state) == ("cancelled", "unknown")
    await wait_until(lambda: owls.interrupted, "the module has seen the caller hang up")
    assert await handle.status() == "done"


async def test_a_cancelled_coroutine_takes_its_call_back(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """An agent that gives up does not leave the tool running."""
    waiting = asyncio.create_task(fleet.call(call("nap_once", seconds=30), owner))
    await wait_until(lambda: owls.running, "the module has the call")
    waiting.cancel()
    await wait_until(lambda: owls.interrupted, "the module has seen the caller hang up")

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_leaving_the_fleet_does_not_forget_a_call_that_was_given_up(
    bed: TestBed, worker: WorkerProcess, owner: Caller, owls: ModuleServer
) -> None:
    """An agent that is interrupted in the middle of a call, and ends, still takes the call back."""
    owls.forget()

    async def agent() -> None:
        async with ToolFleet(settings=bed.settings) as fleet:
            await fleet.call(call("nap_once", seconds=30), owner)

    running = asyncio.create_task(agent())
    await wait_until(lambda: owls.running, "the module has the call")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await wait_until(lambda: owls.interrupted, "the module has seen the caller hang up")


async def test_a_handle_can_be_asked_again(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """`result(timeout)` raises when it is not there yet; the call goes on."""
    with holding(owls, "nap"):
        handle = await fleet.submit(call("nap", seconds=0), owner)
        with pytest.raises(TimeoutError):
            await handle.result(0)

    assert (await handle.result()).success
    assert handle.tool_name == "owls.nap"


async def test_nothing_is_left_behind(fleet: ToolFleet, owner: Caller, bed: TestBed) -> None:
    """After calls have ended, no subscription and no task of theirs stays, in Redis or here."""
    await fleet.call_many([call("echo", number=number) for number in range(100)], owner)
    async with Redis.from_url(bed.redis_url) as redis:
        seen = [await redis.pubsub_channels("celery-task-meta-*")]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while seen[-1]:
                seen.append(await redis.pubsub_channels("celery-task-meta-*"))

    session = fleet._sessions.here()
    assert session is not None
    assert not session._listener._expected
    assert len(session._background) == 1  # it follows the news of manifests


async def test_manifests_are_taken_over_from_other_processes(
    fleet: ToolFleet, owner: Caller, bed: TestBed, owls: ModuleServer
) -> None:
    """A tool that another process has discovered is offered here without asking for it."""
    async with ToolFleet(settings=bed.settings) as other:
        owls.add("new", owls.tools["owls.echo"])
        try:
            await other.modules.refresh()
            names: list[str] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while "owls.new" not in names:
                    names = [tool.name for tool in await fleet.tools(owner)]
                    await asyncio.sleep(0)
        finally:
            owls.definitions.pop()
            await other.modules.refresh()


def test_programs_without_a_loop_have_the_same(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """`ToolFleet.sync()` offers the client with plain methods."""
    with ToolFleet.sync(settings=bed.settings) as fleet:
        assert "owls.echo" in [tool.name for tool in fleet.tools(owner)]
        assert fleet.modules.statuses()["owls"].ok
        assert fleet.call(call("echo", a=1), owner).result == {"a": 1}
        versioned = ToolCall(tool_name="owls.echo", tool_version="1.0.0")
        assert fleet.call(versioned, owner).error_code == "version_mismatch"
        assert [result.result for result in fleet.call_many([call("echo", a=2)], owner)] == [{"a": 2}]
        handle = fleet.submit(call("nap", seconds=0), owner)
        assert handle.result(PATIENCE_SECONDS).success
        assert handle.status() == "done"


async def test_the_url_may_come_as_an_argument(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """The Redis URL alone may come as an argument."""
    settings = Settings(module_services=bed.settings.module_services)
    async with ToolFleet(bed.redis_url, settings) as fleet:
        assert (await fleet.call(call("echo"), owner)).success


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_deadline_that_has_passed_is_expired_at_once(
    fleet: ToolFleet, owner: Caller, owls: ModuleServer, seconds: float
) -> None:
    """Such a call is not published."""
    result = await fleet.call(call("echo"), owner, timeout=seconds)

    assert (result.error_code, result.effect_state) == ("expired", "none")
    assert owls.requests == []


async def test_a_deadline_may_be_for_ever(fleet: ToolFleet, owner: Caller) -> None:
    """Infinity is only a long time; what is no number is a mistake of the program's."""
    assert (await fleet.call(call("echo"), owner, timeout=float("inf"))).success
    with pytest.raises(ValueError, match="nan"):
        await fleet.call(call("echo"), owner, timeout=float("nan"))


async def test_a_fleet_that_is_not_open_says_so(bed: TestBed, owner: Caller) -> None:
    """Before it is entered and after it was left, a call is a mistake of the program's."""
    fleet = ToolFleet(settings=bed.settings)
    with pytest.raises(RuntimeError, match="async with"):
        await fleet.call(call("echo"), owner)
    async with fleet:
        pass
    with pytest.raises(RuntimeError, match="async with"):
        await fleet.tools(owner)


async def test_the_retrys_end_does_not_hide_what_the_first_attempt_may_have_done(
    fleet: ToolFleet, owner: Caller, owls: ModuleServer
) -> None:
    """The first attempt failed in the middle, the second was turned away: the first's answer counts, and its effect is unknown."""

    async def fail_then_turn_away(request: dict[str, Any]) -> web.Response | dict[str, Any]:
        if len(owls.calls("fail")) == 1:
            return {"success": False, "error": "charged, then failed", "retryable": True}
        return web.Response(status=503, headers={"Retry-After": "0"})

    owls.tools["owls.fail"], before = fail_then_turn_away, owls.tools["owls.fail"]
    try:
        result = await fleet.call(call("fail"), owner)
    finally:
        owls.tools["owls.fail"] = before

    assert (result.error_code, result.effect_state, result.retryable) == ("module_error", "unknown", False)
    assert "charged, then failed" in (result.error or "")


async def test_leaving_the_fleet_ends_its_calls_with_a_result(
    bed: TestBed, worker: WorkerProcess, owner: Caller, owls: ModuleServer
) -> None:
    """Who still waits gets a result that claims nothing, and no exception."""
    await wait_until(lambda: not owls.running, "what other tests have left has ended")
    owls.forget()
    with holding(owls, "nap_once"):
        async with ToolFleet(settings=bed.settings) as fleet:
            waiting = asyncio.create_task(fleet.call(call("nap_once", seconds=0), owner))
            await wait_until(lambda: owls.running, "the module has the call")

        assert (await waiting).error_code == "outcome_unknown"


async def test_a_fleet_is_opened_and_closed_by_hand(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """As a notebook or a framework does; to close it once more does no harm, and it can be opened again."""
    fleet = ToolFleet(settings=bed.settings)
    for _ in range(2):
        assert await fleet.open() is fleet
        assert (await fleet.call(call("echo"), owner)).success
        await fleet.close()
        await fleet.close()
        with pytest.raises(RuntimeError, match="not open"):
            await fleet.call(call("echo"), owner)


def test_a_synchronous_fleet_is_opened_and_closed_by_hand(bed: TestBed, worker: WorkerProcess, owner: Caller) -> None:
    """The same, however often."""
    fleet = ToolFleet.sync(settings=bed.settings)
    for _ in range(2):
        assert fleet.open() is fleet.open() is fleet
        assert fleet.call(call("echo"), owner).success
        fleet.close()
        fleet.close()
        with pytest.raises(RuntimeError, match="not open"):
            fleet.call(call("echo"), owner)


def test_a_synchronous_fleet_that_is_not_open_says_so(bed: TestBed, owner: Caller) -> None:
    """It never waits for a loop that does not run."""
    with pytest.raises(RuntimeError, match="inside `with`"):
        ToolFleet.sync(settings=bed.settings).call(call("echo"), owner)
