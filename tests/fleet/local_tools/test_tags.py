"""From a model's text to what its tags have done: a real Redis, a real worker, and functions that run in it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from support.fleet import TestBed, local_tools_offered
from support.local_tools.tag_tools import echo_tag, explode_tag, learning_tag, refuse_tag, research_tag, tag
from support.module_server import ModuleServer
from support.worker_process import TESTS, WorkerProcess
from toolfleet import ToolFleet
from toolfleet.tags import TagRegistry, ToolContext, ToolDef, ToolNotFound, ToolRateLimited, parse_response
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.errors import SettingsError
from toolfleet_tasks.calls.eval_gate import GateDecision
from toolfleet_tasks.resources.audit import AuditReader

LOCAL_TOOLS = "support.local_tools.tag_tools:tools"
CLOCKS_DIFFER = timedelta(seconds=1)


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {"local_tools": LOCAL_TOOLS})


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        with bed.worker() as worker:
            asyncio.run(local_tools_offered(bed))
            yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


def registry_of(fleet: ToolFleet | None, *listed: ToolDef) -> TagRegistry:
    registry = TagRegistry(fleet)
    for tool in listed:
        registry.register(tool)
    return registry


def said_by(user: str, raw_arg: str = "owls") -> ToolContext:
    return ToolContext(raw_arg=raw_arg, user=user)


@pytest.mark.usual
async def test_what_a_model_writes_is_executed_in_a_worker(fleet: ToolFleet, bed: TestBed) -> None:
    """Each tag by its function; what to send and what was done comes back, the fleet's own stamps, and an audit line."""
    registry = registry_of(fleet, research_tag, learning_tag)
    text = "I note that.\nLEARNING: factual owls see at night\n\nRESEARCH: owls ö\n"
    before = datetime.now(UTC)

    parsed = parse_response(text, registry, context=ToolContext(raw_arg="", user="@ada", chat_id=7))
    learned, found = [await registry.execute(call.name, call.context) for call in parsed.tool_calls]

    assert parsed.display_text == "I note that."
    assert (learned.success, learned.message) == (True, "factual: owls see at night")
    assert (found.success, found.message) == (True, "@ada wants owls ö")
    assert found.side_effects == ["searched:x:owls ö"]
    assert found.audit.keys() == {"posts", "duration_ms", "tool", "ts", "call_id"}
    assert (found.audit["posts"], found.audit["tool"]) == (3, "research")  # the handler's own words stay beside ours
    assert isinstance(found.audit["duration_ms"], int)
    # By the fleet's clock, which is that of its Redis, as well as a worker can tell it.
    assert before - CLOCKS_DIFFER <= datetime.fromisoformat(found.audit["ts"]) <= datetime.now(UTC) + CLOCKS_DIFFER
    async with AuditReader.of(bed.settings) as reader:
        lines = {line["call_id"]: line.get("side_effects") for line in (await reader.page(2)).lines}
    assert lines == {found.audit["call_id"]: found.side_effects, learned.audit["call_id"]: None}


@pytest.mark.usual
@pytest.mark.usefixtures("same_day")
async def test_a_daily_limit_holds_for_each_user(fleet: ToolFleet) -> None:
    """The call over it raises, says when to try again, and is not executed; another user has their own."""
    registry = registry_of(fleet, research_tag)
    for _ in range(3):
        assert (await registry.execute("research", said_by("@bea"))).success

    with pytest.raises(ToolRateLimited, match=r"Try again at \d{4}-\d\d-\d\dT00:00:00Z") as caught:
        await registry.execute("research", said_by("@bea"))
    assert caught.value.tool_name == "research"
    assert caught.value.retry_after_seconds is not None
    assert 0 < caught.value.retry_after_seconds <= timedelta(days=1).total_seconds()
    assert (await registry.execute("research", said_by("@cy"))).success


async def test_a_cooldown_holds_for_each_user(fleet: ToolFleet) -> None:
    """Between two calls of one tool."""
    registry = registry_of(fleet, tag("echo", cooldown_seconds=60))
    assert (await registry.execute("echo", said_by("@eli"))).success

    with pytest.raises(ToolRateLimited, match="it may be called once in 60 s"):
        await registry.execute("echo", said_by("@eli"))


async def test_a_tool_that_fails_is_a_result(fleet: ToolFleet, worker: WorkerProcess) -> None:
    """In its own words if it has any; what it raised is for the log, but for the words, which may be secret."""
    registry = registry_of(fleet, refuse_tag, explode_tag)
    refused = await registry.execute("refuse", said_by("@fay"))
    exploded = await registry.execute("explode", said_by("@fay"))

    assert (refused.success, refused.message, refused.audit["looked"]) == (False, "No such owl.", True)
    assert (exploded.success, exploded.message) == (
        False,
        "Tool execution error: the function failed (ValueError); its log says why.",
    )
    assert {"duration_ms", "tool", "ts", "call_id"} <= exploded.audit.keys()
    assert "tag_tools.py" in worker.said()
    assert "secret words about owls" not in worker.said()


async def test_a_tool_that_is_nowhere_is_not_found(fleet: ToolFleet) -> None:
    """Neither here, nor in the workers' list, nor in a module."""
    registry = registry_of(fleet, tag("forgotten", handler=research_tag.handler), tag("astray", handler="owls.nowhere"))

    for name, missing in (("nowhere", "nowhere"), ("forgotten", "local.forgotten"), ("astray", "owls.nowhere")):
        with pytest.raises(ToolNotFound) as caught:
            await registry.execute(name, said_by("@gus"))
        assert caught.value.tool_name == missing
    with pytest.raises(SettingsError, match="with a ToolFleet"):
        await registry_of(None, echo_tag).execute("echo", said_by("@gus"))


@pytest.mark.usefixtures("same_day")
async def test_a_registry_may_have_a_gate_of_its_own(bed: TestBed, worker: WorkerProcess) -> None:
    """Which is asked about its tags in the place of the fleet's; what it blocks is not executed and counts nowhere."""
    asked = list[str]()

    class Gate:
        def __init__(self, name: str) -> None:
            self.name = name

        async def check(self, tool: object, ctx: ToolContext) -> GateDecision:
            asked.append(self.name)
            return GateDecision(ctx.raw_arg == "owls", "Only owls.")

    async with ToolFleet(settings=bed.settings, gate=Gate("fleet")) as fleet:
        registry = TagRegistry(fleet, gate=Gate("registry"))
        registry.register(tag("echo", requires_gate=True, daily_limit=1))
        assert (await registry.execute("echo", said_by("@joe", "mice"))).message == "Only owls."
        assert (await registry.execute("echo", said_by("@joe"))).success
        with pytest.raises(ToolRateLimited):
            await registry.execute("echo", said_by("@joe"))

    assert asked == ["registry", "registry"]
