"""Profiles in the registry, over a whole fleet: they change while calls run, and Redis loses them."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.module_server import holding, serve
from support.owls import make_module
from support.waiting import wait_until, wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.agents.stored.profiles import StoredProfiles
from toolfleet_registry.config.agents.agent_profile import AgentProfile

ECHO = ToolCall(tool_name="owls.echo", arguments={"n": 1})
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 0})
READER = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="reader")
LENIENT: dict[str, dict[str, object]] = {"reader": {}, "other": {}}
"""What an agent's settings say, so that it publishes what only workers refuse."""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """On a Redis of its own, which is emptied."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url, serve(make_module()) as owls:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
def stored(bed: TestBed) -> Iterator[StoredProfiles]:
    opened = StoredProfiles.of(bed.settings)
    yield opened
    for name in opened.read():
        opened.remove(name, by="a test")
    opened.close()


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    """Of an agent that knows what the registry has."""
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
async def lenient(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    """Of an agent whose settings have profiles that take everything."""
    settings = type(bed.settings).model_validate(
        {**bed.settings.model_dump(include={"redis_url", "module_services"}), "agents": LENIENT}
    )
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


async def code(fleet: ToolFleet, call: ToolCall = ECHO, caller: Caller = READER) -> str | None:
    return (await fleet.call(call, caller, timeout=20)).error_code


async def becomes(fleet: ToolFleet, wanted: str | None, what: str) -> None:
    async def is_so() -> bool:
        return await code(fleet) == wanted

    await wait_until_answered(is_so, what)


async def test_a_stored_profile_holds_everywhere(fleet: ToolFleet, stored: StoredProfiles) -> None:
    """In an agent that runs it is listed and judged by at once, in workers soon; and removed it is gone."""
    assert await code(fleet) == "permission_denied"
    assert await fleet.tools(READER) == []
    stored.put("reader", AgentProfile(tools=("owls.echo",)), by="ada")
    await becomes(fleet, None, "the profile is known")
    assert [tool.name for tool in await fleet.tools(READER)] == ["owls.echo"]
    assert await code(fleet, NAP) == "permission_denied"

    stored.put("reader", AgentProfile(tools=("owls.nap",)), by="ada")
    await becomes(fleet, "permission_denied", "the other version is known")
    stored.rollback("reader", 1, by="ada")
    await becomes(fleet, None, "the first version is known again")
    stored.remove("reader", by="ada")
    await becomes(fleet, "permission_denied", "the profile is gone")


async def test_a_worker_goes_by_what_it_knows_itself(lenient: ToolFleet, stored: StoredProfiles) -> None:
    """An agent that lets everything pass changes nothing: without a profile the worker runs nothing, and with one what that takes."""
    await becomes(lenient, "permission_denied", "the worker knows no profile")
    stored.put("reader", AgentProfile(tools=("owls.echo",)), by="ada")
    await becomes(lenient, None, "the worker knows the profile")
    stored.remove("reader", by="ada")
    await becomes(lenient, "permission_denied", "the worker knows that it is gone")


async def test_a_call_that_runs_ends_although_its_profile_goes(
    bed: TestBed, lenient: ToolFleet, stored: StoredProfiles, worker: WorkerProcess
) -> None:
    """It was judged when it began."""
    stored.put("reader", AgentProfile(), by="ada")
    await becomes(lenient, None, "the worker knows the profile")
    (owls,) = bed.modules
    with holding(owls, "nap"):
        handle = await lenient.submit(NAP, READER, timeout=40)
        await wait_until(lambda: owls.calls("nap"), "it runs")
        stored.remove("reader", by="ada")
        await becomes(lenient, "permission_denied", "the worker knows that it is gone")

    assert (await handle.result()).success


async def test_a_redis_that_was_emptied_opens_and_closes_nothing(
    bed: TestBed, fleet: ToolFleet, lenient: ToolFleet, stored: StoredProfiles
) -> None:
    """What agents and workers knew they go on with; an agent that nobody knew stays so."""
    stored.put("reader", AgentProfile(tools=("owls.echo",)), by="ada")
    await becomes(fleet, None, "the agent knows the profile")
    await becomes(lenient, None, "the worker knows the profile")
    async with Redis.from_url(bed.redis_url) as redis:
        await redis.flushall()
        await redis.publish(bed.settings.keys.manifests_changed, "")
    await asyncio.gather(fleet.modules.refresh(), lenient.modules.refresh())

    for asked in (fleet, lenient):
        assert await code(asked) is None
        assert await code(asked, NAP) == "permission_denied"
    assert await code(lenient, caller=READER.model_copy(update={"agent": "other"})) == "permission_denied"
