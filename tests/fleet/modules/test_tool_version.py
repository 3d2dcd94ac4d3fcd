"""A call that names a version of its tool is run while that version is in effect, and at no other time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web

from support.fleet import TestBed, program
from support.module_server import ModuleServer, Request, serve
from support.owls import echo
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, CallRefused, Conversation, Job, Poll, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.commands import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.catalog.operator import operating
from toolfleet_registry.contracts.jobs import ENDED, JobRefused

OLD, NEW = "1.0.0", "1.1.0"
HAS_CHANGED = f"Tool 'owls.echo' has version {NEW!r} now, and the call names version {OLD!r}."
HERE = Conversation(conversation_id="c-1")


class Owls(ModuleServer):
    """Echoes under a version; a call of `turn_away` waits until it `may_answer`, and is to come back then."""

    may_answer = False

    def __init__(self) -> None:
        super().__init__("owls")
        self.add("echo", echo, effect="read", version=OLD)
        self.add("turn_away", self.turn_away, effect="once", version=OLD)
        self.add("plain", echo, effect="read")

    async def turn_away(self, _: Request) -> web.Response:
        await wait_until(lambda: self.may_answer, "it may answer")
        return web.Response(status=503, headers={"Retry-After": "0"})

    def offer(self, version: str) -> None:
        for one in self.definitions:
            if "version" in one:
                one["version"] = version


@pytest.fixture
def owls() -> Iterator[Owls]:
    module = Owls()
    with serve(module):
        yield module


@pytest.fixture
def bed(owls: Owls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(
            url, (owls,), tmp_path_factory.mktemp("logs"), {"shortest_poll_seconds": 0.05, "jobs_interval_seconds": 0.2}
        )


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    """An agent; no worker yet."""
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def worker(bed: TestBed, fleet: ToolFleet) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


def naming(version: str | None, method: str = "echo", **fields: Any) -> ToolCall:
    return ToolCall(tool_name=f"owls.{method}", arguments={"a": 1}, tool_version=version, **fields)


def told(result: ToolResult | None) -> tuple[Any, ...]:
    assert result is not None
    return result.error_code, result.error, result.effect_state, result.retryable


REFUSED = ("version_mismatch", HAS_CHANGED, "none", False)


async def until_in_effect(fleet: ToolFleet, caller: Caller, version: str) -> None:
    """Wait until this agent has heard of it."""
    async with asyncio.timeout(30):
        while version not in {tool.version for tool in await fleet.tools(caller)}:
            await fleet.modules.refresh()


@pytest.mark.usual
async def test_only_the_version_in_effect_is_called(
    fleet: ToolFleet, worker: WorkerProcess, owls: Owls, owner: Caller
) -> None:
    """Whoever names another one, or one of a tool without any, is told so by the agent; who names none has what there is."""
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    calls = [naming(version) for version in (NEW, OLD, None)]
    new, old, whichever = await fleet.call_many(calls, owner, timeout=30)

    assert (new.success, whichever.success, told(old)) == (True, True, REFUSED)
    assert told(await (await fleet.submit(naming(OLD), owner)).result()) == REFUSED
    assert (
        old.hint
        == "Nothing was executed: the tool has changed, so look at how it is described now before you call it again."
    )
    plain = await fleet.call(naming(NEW, "plain"), owner)
    assert plain.error == f"Tool 'owls.plain' has no version now, and the call names version {NEW!r}."
    long = await fleet.call(naming("\ud800" * 256), owner)
    assert (long.error_code, len(long.error or "") < 300) == ("version_mismatch", True)
    assert len(owls.requests) == 2


async def test_a_version_that_operators_went_back_to_is_the_one_in_effect(
    bed: TestBed, fleet: ToolFleet, worker: WorkerProcess, owls: Owls, owner: Caller
) -> None:
    """Whatever the module offers."""
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    async with operating(bed.settings) as operator:
        await operator.rollback("owls.echo", OLD)
    await until_in_effect(fleet, owner, OLD)

    assert (await fleet.call(naming(OLD), owner, timeout=30)).success
    assert (await fleet.call(naming(NEW), owner)).error_code == "version_mismatch"


async def test_a_call_whose_version_has_changed_since_is_not_run(
    bed: TestBed, fleet: ToolFleet, owls: Owls, owner: Caller
) -> None:
    """The worker looks before it runs it: a call, a link of a canvas and a repeat under a key alike."""
    handle = await fleet.submit(naming(OLD), owner, waits_for_worker=True)
    keyed = await fleet.submit(naming(OLD, idempotency_key="k"), owner, waits_for_worker=True)
    link = await fleet.canvas.signature(naming(OLD), owner)
    await asyncio.to_thread(link.apply_async)
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    with bed.worker():
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            ends = [await handle.result(), await keyed.result(), await fleet.canvas.result_of(link)]

    assert [told(end) for end in ends] == [REFUSED] * 3
    assert owls.requests == []
    with pytest.raises(CallRefused, match="names version"):
        await fleet.canvas.signature(naming(OLD), owner)


async def test_a_running_worker_hears_of_a_version_before_the_next_call_that_names_one(
    fleet: ToolFleet, worker: WorkerProcess, owls: Owls, owner: Caller
) -> None:
    """Both ways: it refuses the old one and runs the new one, however recently it has looked."""
    for before, after in ((OLD, NEW), (NEW, "2.0.0"), ("2.0.0", "2.0.1")):
        assert (await fleet.call(naming(before), owner, timeout=30)).success
        owls.offer(after)
        await until_in_effect(fleet, owner, after)
        assert (
            await fleet.call(naming(before, idempotency_key=after), owner, timeout=30)
        ).error_code == "version_mismatch"
        assert (await fleet.call(naming(after), owner, timeout=30)).success


async def test_a_retry_is_held_to_the_version_too(
    fleet: ToolFleet, worker: WorkerProcess, owls: Owls, owner: Caller
) -> None:
    """A call that was turned away comes back to a tool that has changed: it is begun once, and has done nothing."""
    handle = await fleet.submit(naming(OLD, "turn_away"), owner, timeout=60)
    await wait_until(lambda: owls.calls("turn_away"), "its first attempt is under way")
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    owls.may_answer = True
    result = await handle.result()

    assert (result.error_code, result.effect_state, len(owls.calls("turn_away"))) == ("version_mismatch", "none", 1)


async def test_a_version_belongs_to_what_an_idempotency_key_stands_for(
    fleet: ToolFleet, worker: WorkerProcess, owls: Owls, owner: Caller
) -> None:
    """A repeat has the first call's result, also when another version is in effect by then; other versions are a conflict."""
    first = await fleet.call(naming(OLD, idempotency_key="k"), owner, timeout=30)
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    again = await fleet.call(naming(OLD, idempotency_key="k"), owner, timeout=30)
    others = [await fleet.call(naming(one, idempotency_key="k"), owner, timeout=30) for one in (NEW, None)]

    assert (first.success, again.audit.call_id, again.result) == (True, first.audit.call_id, first.result)
    assert [other.error_code for other in others] == ["conflict", "conflict"]
    assert len(owls.requests) == 1


async def test_a_job_is_held_to_the_versions_that_its_calls_name(
    bed: TestBed, fleet: ToolFleet, owls: Owls, owner: Caller
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
        owls.offer(NEW)
        await until_in_effect(fleet, owner, NEW)
        over: Job | None = job
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            while over is not None and over.state not in ENDED:
                over = await fleet.jobs.get(job.job_id, owner)
    assert over is not None
    assert (over.state, over.error_code) == ("failed", "version_mismatch")
    assert HAS_CHANGED in (over.error or "")


async def test_programs_without_an_event_loop_name_versions_as_well(
    bed: TestBed, worker: WorkerProcess, owls: Owls, owner: Caller
) -> None:
    """The synchronous face takes the same call."""

    def ends() -> list[bool]:
        with contextlib.closing(ToolFleet.sync(settings=bed.settings).open()) as fleet:
            return [fleet.call(naming(version), owner, timeout=30).success for version in (OLD, NEW)]

    assert await asyncio.to_thread(ends) == [True, False]
