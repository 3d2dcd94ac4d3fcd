"""A job whose calls name versions of their tools; `tests/virtual` has what becomes of single calls."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.fleet import TestBed, program
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, Conversation, Job, Poll, ToolCall, ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts.jobs import ENDED, JobRefused

OLD, NEW = "1.0.0", "1.1.0"
HAS_CHANGED = f"Tool 'owls.echo' has version {NEW!r} now, and the call names version {OLD!r}."
HERE = Conversation(conversation_id="c-1")


def offer(owls: ModuleServer, version: str) -> None:
    owls.definitions[0]["version"] = version


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("echo", echo, effect="read", version=OLD)
    with serve(module):
        yield module


@pytest.fixture
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {"jobs_interval_seconds": 0.1})


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    """An agent; no worker yet."""
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


def naming(version: str) -> ToolCall:
    return ToolCall(tool_name="owls.echo", arguments={"a": 1}, tool_version=version)


async def until_in_effect(fleet: ToolFleet, caller: Caller, version: str) -> None:
    """Wait until this agent has heard of it."""
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while version not in {tool.version for tool in await fleet.tools(caller)}:
            await fleet.modules.refresh()


async def test_a_job_is_held_to_the_versions_that_its_calls_name(
    bed: TestBed, fleet: ToolFleet, owls: ModuleServer, owner: Caller
) -> None:
    """It is refused for one that is not in effect; a poll that meets another one ends it as failed."""
    wrongs: list[dict[str, Any]] = [{"start": naming(NEW)}, {"poll": Poll(tool_name="owls.echo", tool_version=NEW)}]
    for wrong in wrongs:
        with pytest.raises(JobRefused) as refusal:
            await fleet.jobs.start(**wrong, conversation=HERE, caller=owner)
        assert refusal.value.result.error_code == "version_mismatch"

    poll = Poll(tool_name="owls.echo", tool_version=OLD, interval_seconds=0.1)
    with bed.worker(), program(bed, beat_command(), "beat", ready="beat: Starting"):
        job = await fleet.jobs.start(naming(OLD), poll, conversation=HERE, caller=owner, deadline=60)
        await wait_until(lambda: len(owls.calls("echo")) > 1, "it is polled")
        offer(owls, NEW)
        await until_in_effect(fleet, owner, NEW)
        over: Job | None = job
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            while over is not None and over.state not in ENDED:
                over = await fleet.jobs.get(job.job_id, owner)
    assert over is not None
    assert (over.state, over.error_code) == ("failed", "version_mismatch")
    assert HAS_CHANGED in (over.error or "")
