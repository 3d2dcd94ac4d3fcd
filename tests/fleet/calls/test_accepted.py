"""Calls that their module goes on with by itself: the fleet holds no slot for them, and asks where they are."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import SIGNING_KEY, TestBed
from support.module_server import ModuleServer, serve
from support.modules import sdk_program
from support.servers.hatchery import HATCHED, Hatchery, make_hatchery
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, Progress, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import held_port, redis_server
from toolfleet_tasks.messages.signing import module_key

HATCH = ToolCall(tool_name="nest.hatch")
BROOD = ToolCall(tool_name="owls.brood")
SECONDS = 30


@pytest.fixture(scope="module")
def shared() -> Iterator[Hatchery]:
    hatchery = make_hatchery()
    with serve(hatchery.server):
        yield hatchery


@pytest.fixture
def nest(shared: Hatchery) -> Hatchery:
    shared.start_anew()
    return shared


@pytest.fixture(scope="module")
def served(shared: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """With a worker, for those that need none of their own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        bed = TestBed(url, (shared.server,), tmp_path_factory.mktemp("logs"), {"visibility_timeout": 4})
        with bed.worker():
            yield bed


@pytest.fixture
async def fleet(served: TestBed, nest: Hatchery) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=served.settings) as fleet:
        yield fleet


@pytest.mark.usual
@pytest.mark.parametrize("tool", ["hatch", "plainly", "in_lines", "warm"])
async def test_it_ends_with_what_the_module_says(fleet: ToolFleet, nest: Hatchery, owner: Caller, tool: str) -> None:
    """Accepted by 200, by 202 or in the last of several lines: it is begun once, and the questions are no attempts."""
    nest.ends = 1.0
    began_at = time.monotonic()
    result = await fleet.call(ToolCall(tool_name=f"nest.{tool}"), owner, timeout=SECONDS)

    assert (result.success, result.result, result.effect_state) == (True, "an owl", "done")
    assert (len(nest.begun), result.audit.attempts, nest.cancelled) == (1, 1, [])
    assert len(nest.asked) >= 2
    assert nest.asked[0] == {"call_id": result.audit.call_id, "handle": nest.begun[0]}
    assert result.audit.duration_ms is not None
    assert 900 < result.audit.duration_ms < (time.monotonic() - began_at) * 1000 + 100


async def test_a_result_is_held_against_the_schema(fleet: ToolFleet, nest: Hatchery, owner: Caller) -> None:
    """As that of any other call; and a failure is told in the module's words."""
    nest.answer = {"state": "done", "success": True, "result": "far too long for an owl"}
    result = await fleet.call(ToolCall(tool_name="nest.checked"), owner, timeout=SECONDS)
    assert (result.error_code, result.effect_state) == ("invalid_response", "done")

    nest.answer = {"state": "done", "success": False, "error": "The egg was cold.", "effect_state": "none"}
    result = await fleet.call(HATCH, owner, timeout=SECONDS)
    assert (result.error, result.error_code, result.effect_state) == ("The egg was cold.", "module_error", "none")
    assert result.retryable


@pytest.mark.parametrize("answer", [{"state": "unknown"}, {"state": "none"}, 404], ids=["unknown", "none", "404"])
async def test_a_module_that_has_forgotten_it_leaves_it_unknown(
    fleet: ToolFleet, nest: Hatchery, owner: Caller, answer: Any
) -> None:
    """It has said that it had begun: whatever it says after that, the call is not told as undone."""
    nest.server.memory = lambda _: {"state": "none"}
    nest.answer, nest.fault = (answer, 0) if isinstance(answer, dict) else ({}, answer)
    result = await fleet.call(HATCH, owner, timeout=SECONDS)

    assert (result.error_code, result.effect_state, result.retryable) == ("outcome_unknown", "unknown", False)
    assert len(nest.begun) == 1


async def test_what_a_module_remembers_of_its_end_counts(fleet: ToolFleet, nest: Hatchery, owner: Caller) -> None:
    """Where its status says nothing, a reconciliation may."""
    nest.answer = {"state": "unknown"}
    nest.server.memory = lambda _: HATCHED
    result = await fleet.call(HATCH, owner, timeout=SECONDS)
    assert (result.success, result.result) == (True, "an owl")


@pytest.mark.parametrize("fault", [503, "garbage"])
async def test_a_module_that_says_nothing_is_asked_again(
    fleet: ToolFleet, nest: Hatchery, owner: Caller, fault: int | str
) -> None:
    """Where it is busy, or answers what is no answer, the call goes on."""
    nest.fault, nest.answer = (503, {}) if fault == 503 else (0, {"state": "hatching"})
    handle = await fleet.submit(HATCH, owner, timeout=60)
    await wait_until(lambda: len(nest.asked) >= 3, "it is asked again and again")
    nest.fault, nest.answer = 0, HATCHED
    assert (await handle.result(SECONDS)).success
    assert len(nest.begun) == 1


@pytest.mark.parametrize("is_silent", [False, True], ids=["between two questions", "during one"])
async def test_its_caller_can_take_it_back(
    served: TestBed, fleet: ToolFleet, nest: Hatchery, owner: Caller, is_silent: bool
) -> None:
    """The module is told, once and at once, and may end it."""
    nest.hangs, nest.poll_after = is_silent, 0.2 if is_silent else 30.0
    handle = await fleet.submit(HATCH, owner, timeout=60)
    if is_silent:
        await wait_until(lambda: nest.asked, "it is asked for")
    else:  # that the module has begun says not yet that its worker has heard so
        async with Redis.from_url(served.redis_url) as redis:
            record = served.settings.keys.call(handle.id)
            await wait_until_answered(lambda: redis.hexists(record, "accepted"), "it goes on")
    await handle.cancel()
    result = await handle.result(SECONDS)

    assert (result.error_code, result.effect_state) == ("cancelled", "unknown")
    await wait_until(lambda: nest.cancelled, "the module is told", seconds=SECONDS)
    assert nest.cancelled == [{"call_id": result.audit.call_id, "handle": nest.begun[0], "cancel": True}]


async def test_its_progress_is_passed_on(fleet: ToolFleet, nest: Hatchery, owner: Caller) -> None:
    """What the module says each time that it is asked reaches whoever wants to know."""
    nest.answer = {"state": "running", "progress": 0.25, "message": "warming"}
    handle = await fleet.submit(HATCH, owner, timeout=60)
    seen = list[Progress]()
    async with asyncio.timeout(SECONDS):
        async for progress in handle.progress():
            seen.append(progress)
            if progress.fraction == 0.25:
                nest.answer = {"state": "running", "progress": 0.75, "message": "cracking"}
            if progress.fraction == 0.75:
                nest.answer = HATCHED
    assert [(each.fraction, each.message) for each in seen[-2:]] == [(0.25, "warming"), (0.75, "cracking")]
    assert (await handle.result(SECONDS)).success


async def test_a_job_goes_on_with_what_it_came_to(fleet: ToolFleet, nest: Hatchery, owner: Caller) -> None:
    """A step whose tool is accepted is one step, begun once; what follows it begins when it has ended."""
    nest.poll_after = 0.2
    then = ToolCall(tool_name="nest.quick")
    job = await fleet.jobs.start(HATCH, on_complete=then, caller=owner, deadline=60)
    await wait_until(lambda: len(nest.asked) >= 2, "its first step goes on")
    assert nest.server.calls("quick") == []
    nest.answer = HATCHED
    await wait_until(lambda: nest.server.calls("quick"), "the next step begins", seconds=SECONDS)

    found = await fleet.jobs.get(job.job_id, owner)
    assert found is not None
    assert (found.result, len(nest.begun)) == ("an owl", 1)


@pytest.mark.parametrize("replies", ["", pytest.param("replies.db", marks=pytest.mark.slow)])
async def test_a_module_that_was_killed_has_forgotten(
    redis_url: str, tmp_path: Path, owner: Caller, replies: str
) -> None:
    """With the SDK, in a fleet that signs: the call is unknown, whatever is remembered of it, and was begun once."""
    where = tmp_path / replies if replies else ""
    module, logs = ModuleServer("owls"), tmp_path / "logs"
    logs.mkdir()
    bed = TestBed(redis_url, (module,), logs, {"visibility_timeout": 4, "signing_key": SIGNING_KEY})
    key = module_key(SIGNING_KEY, "owls")
    with held_port() as port, sdk_program.running(tmp_path, replies=where, key=key, port=port) as first:
        module.url = first.url
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                (tmp_path / "hatched").touch()
                assert (await fleet.call(BROOD, owner, timeout=60)).result == "owls"
                (tmp_path / "hatched").unlink()
                handle = await fleet.submit(BROOD, owner, timeout=120)
                await wait_until(lambda: (tmp_path / "journal").read_text() == "brood\nbrood\n", "it goes on")
                async for progress in handle.progress():
                    assert (progress.fraction, progress.message) == (0.5, "warm")
                    break
                first.process.kill()
                first.process.wait(PATIENCE_SECONDS)
                with sdk_program.running(tmp_path, replies=where, key=key, port=port):
                    result = await handle.result(3 * PATIENCE_SECONDS)
    assert (result.error_code, result.effect_state) == ("outcome_unknown", "unknown")
    assert (tmp_path / "journal").read_text() == "brood\nbrood\n"
