"""Profiles in the registry, over a whole fleet: they change while calls run, and Redis loses them."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from bed.fleet import Bed, until
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.agents.stored_profiles import StoredProfiles
from toolfleet_registry.config.agent_profile import AgentProfile

ECHO = ToolCall(tool_name="owls.echo", arguments={"n": 1})
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 25})
READER = Caller(user_id="ada", permission="owner", allowed_modules="*", agent="reader")
LENIENT: dict[str, dict[str, object]] = {"reader": {}, "other": {}}
"""What an agent's settings say, so that it publishes what only workers refuse."""


@pytest.fixture
async def fleet(bed: Bed, owls: ModuleServer) -> ToolFleet:
    """Of an agent that knows what the registry has."""
    await bed.serve(owls)
    await bed.worker()
    return await bed.agent()


@pytest.fixture
async def lenient(bed: Bed, fleet: ToolFleet) -> ToolFleet:
    """Of an agent whose settings have profiles that take everything."""
    return await bed.agent(agents=LENIENT)


@pytest.fixture
def stored(bed: Bed) -> Iterator[StoredProfiles]:
    with closing(StoredProfiles.of(bed.settings)) as opened:
        yield opened


async def code(fleet: ToolFleet, call: ToolCall = ECHO, caller: Caller = READER) -> str | None:
    return (await fleet.call(call, caller)).error_code


async def becomes(fleet: ToolFleet, wanted: str | None, what: str) -> None:
    async def is_so() -> bool:
        return await code(fleet) == wanted

    await until(is_so, what)


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
    lenient: ToolFleet, stored: StoredProfiles, owls: ModuleServer
) -> None:
    """It was judged when it began."""
    stored.put("reader", AgentProfile(), by="ada")
    await becomes(lenient, None, "the worker knows the profile")
    handle = await lenient.submit(NAP, READER)
    await until(lambda: owls.calls("nap"), "it runs")
    stored.remove("reader", by="ada")
    await becomes(lenient, "permission_denied", "the worker knows that it is gone")
    assert owls.running

    assert (await handle.result()).success


async def test_a_redis_that_was_emptied_opens_and_closes_nothing(
    bed: Bed, fleet: ToolFleet, lenient: ToolFleet, stored: StoredProfiles
) -> None:
    """What agents and workers knew they go on with; an agent that nobody knew stays so."""
    stored.put("reader", AgentProfile(tools=("owls.echo",)), by="ada")
    await becomes(fleet, None, "the agent knows the profile")
    await becomes(lenient, None, "the worker knows the profile")
    bed.ask("FLUSHALL")
    bed.ask("PUBLISH", bed.settings.keys.manifests_changed, "")
    await asyncio.gather(fleet.modules.refresh(), lenient.modules.refresh())

    for asked in (fleet, lenient):
        assert await code(asked) is None
        assert await code(asked, NAP) == "permission_denied"
    assert await code(lenient, caller=READER.model_copy(update={"agent": "other"})) == "permission_denied"
