"""What the desk refuses when a job is made, and what it finds out about its tools; on a real Redis, without workers."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer, serve
from support.owls import echo, make_module
from support.waiting import wait_until_equal
from toolfleet import Caller, Conversation, JobRefused, Poll, Schedule, ToolCall, ToolFleet, url_poll
from toolfleet_registry.contracts import ToolDefinition, ToolResult
from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.tags import ToolContext, ToolDef
from toolfleet_tasks.calls.eval_gate import GateDecision
from toolfleet_tasks.jobs.engine import JobSteps, gate_mark
from toolfleet_tasks.jobs.records import JobRecords

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
PLACE = Conversation(conversation_id="talk-1")
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}
SECRET_IN = {"type": "object", "properties": {"password": {"type": "string", "x-sensitive": True}}}
SECRET_OUT = {"type": "object", "properties": {"token": {"type": "string", "x-sensitive": True}}}


class Gate:
    """Lets everything pass, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def check(self, tool: ToolDef | ToolDefinition, ctx: ToolContext) -> GateDecision:
        self.asked.append((tool.name, ctx.raw_arg))
        return GateDecision(approved=True)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    module = make_module()
    module.add("guarded", echo, requires_gate=True, input_schema=NUMBER)
    module.add("secretive", echo, output_schema=SECRET_OUT)
    module.add("login", echo, input_schema=SECRET_IN)
    with serve(module) as module:
        yield module


@pytest.fixture
async def fleet(redis_url: str, owls: ModuleServer, gate: Gate) -> AsyncIterator[ToolFleet]:
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url})
    async with ToolFleet(settings=settings, gate=gate) as fleet:
        yield fleet


async def spec_of(redis: Redis, job_id: str) -> dict[str, Any]:
    """What is kept of a job, in a fleet that does not sign."""
    found = json.loads(str(await redis.hget(Keys().job(job_id), "spec")))
    assert isinstance(found, dict)
    return found


START = ToolCall(tool_name="owls.echo", arguments={"id": 1})
FROM_START = {"id": {"$from": "id"}}


async def test_a_job_begins_at_once(fleet: ToolFleet, redis: Redis) -> None:
    """Somebody is asked to begin each, also where its time, in whole milliseconds, is a little later than now."""
    for number in range(20):
        await fleet.jobs.start(START, caller=ADA, conversation=PLACE)
        await wait_until_equal(lambda: redis.llen("toolfleet.control"), number + 1, "somebody is asked")


@pytest.mark.parametrize("wish", [{"n": {"$from": "id"}}, {"other": [{"$from": "id"}]}])
async def test_a_gate_is_asked_about_nothing_that_nobody_knows(
    fleet: ToolFleet, gate: Gate, wish: dict[str, Any]
) -> None:
    """Arguments from the start's result go past it, so such a job is refused, whether or not they fit the tool's schema."""
    with pytest.raises(JobRefused, match="requires the agent's gate") as error:
        await fleet.jobs.start(START, Poll(tool_name="owls.guarded", arguments=wish), caller=ADA, conversation=PLACE)

    assert error.value.result.error_code == "blocked_by_gate"
    assert gate.asked == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"on_complete": ["wake_up"]}, r"on_complete\.0.*'resume_conversation' or 'notify'"),
        ({"on_complete": 5}, "on_complete: Input should be a valid tuple"),
        ({"message": b"\xff"}, "message: Input should be a valid string"),
        ({"schedule": Schedule(at=4e9)}, "It begins more than 31622400 s ahead"),
        ({"schedule": Schedule(delay_seconds=4e9)}, "It begins more than 31622400 s ahead"),
        ({"schedule": Schedule(delay_seconds=1e300)}, "`at` is no time that a calendar has"),
        ({"workflow_id": ""}, "workflow_id: String should have at least 1 character"),
        ({"on_failure_message": "x" * 10_001}, "on_failure_message: String should have at most 10000 characters"),
        ({"schedule": Schedule(at=4e9), "deadline": 5e9}, "It begins more than 31622400 s ahead"),
        ({"start": None, "schedule": Schedule(cron="0 0 29 2 *"), "deadline": 60}, "begins after its deadline"),
        ({"start": START.model_copy(update={"tool_version": ""})}, "The tool version is empty"),
        # Its arguments are not known yet, so that nothing else about it is judged either.
        ({"poll": Poll(tool_name="owls.echo", arguments=FROM_START, tool_version="x" * 257)}, "has more than 256"),
    ],
)
async def test_what_is_wrong_with_a_wish_is_said_in_a_sentence(
    fleet: ToolFleet, wish: dict[str, Any], words: str
) -> None:
    """Also what has the wrong type, or is beyond what the fleet waits for: nothing is made."""
    wanted: dict[str, Any] = {"start": START, "caller": ADA, "conversation": PLACE, **wish}
    with pytest.raises(JobRefused, match=words) as error:
        await fleet.jobs.start(**wanted)

    assert error.value.result.error_code == "invalid_arguments"
    assert "\n" not in str(error.value)
    assert await fleet.jobs.list(ADA) == []


async def test_an_address_needs_the_module_that_fetches_it(fleet: ToolFleet) -> None:
    """Said when the job is made, in one sentence; no worker fetches anything."""
    with pytest.raises(
        JobRefused, match=r"'research\.check_url' of the module 'research', which this fleet does not have"
    ) as error:
        await fleet.jobs.start(None, url_poll("https://owls.example/state"), caller=ADA, conversation=PLACE)

    assert error.value.result.error_code == "unknown_module"
    assert await fleet.jobs.list(ADA) == []


@pytest.mark.parametrize(
    ("url", "expected", "words"),
    [
        ("ftp://owls.example/", {}, "must be an http or https address"),
        ("http://owls.example:99999/", {}, "must be an http or https address"),
        ("https://owls.example/" + "x" * 2_000, {}, "at most 2,000 characters"),
        ("https://owls.example/", {"status": 99}, "from 200 to 599"),
        ("https://owls.example/", {"status": []}, "from 200 to 599"),
        ("https://owls.example/", {"field": "a.b"}, "go together"),
        ("https://owls.example/", {"value": 1}, "go together"),
    ],
)
def test_what_cannot_be_polled_is_said_in_a_sentence(url: str, expected: dict[str, Any], words: str) -> None:
    """When the poll is made."""
    with pytest.raises(ValueError, match=words):
        url_poll(url, **expected)


async def test_a_gate_lets_one_call_pass_and_not_its_tool(fleet: ToolFleet, redis: Redis, gate: Gate) -> None:
    """What the job keeps is worth nothing for other arguments."""
    poll = Poll(tool_name="owls.guarded", arguments={"n": 1}, until=None)
    job = await fleet.jobs.start(None, poll, caller=ADA, conversation=PLACE)
    kept = (await spec_of(redis, job.job_id))["gated"]

    assert [name for name, _ in gate.asked] == ["owls.guarded"]
    assert kept == [gate_mark("owls.guarded", {"n": 1})]
    assert gate_mark("owls.guarded", {"n": 2}) not in kept
    assert gate_mark("owls.echo", {"n": 1}) not in kept


@pytest.mark.parametrize("has_gate", [True, False])
async def test_a_profiles_gate_is_asked_for_a_jobs_steps(
    redis_url: str, owls: ModuleServer, gate: Gate, has_gate: bool
) -> None:
    """Of tools that require none themselves, when the job is made; without a gate there is no job."""
    agents: Any = {"careful": {"middleware": [{"name": "gate", "tools": ["owls.echo"]}]}}
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url}, agents=agents)
    careful = ADA.model_copy(update={"agent": "careful"})
    async with ToolFleet(settings=settings, gate=gate if has_gate else None) as fleet:
        if not has_gate:
            with pytest.raises(JobRefused, match="requires the agent's gate"):
                await fleet.jobs.start(START, caller=careful, conversation=PLACE)
            return
        job = await fleet.jobs.start(START, caller=careful, conversation=PLACE)
        session: Any = await fleet._sessions.opened()
        found = await session.jobs._records.get(job.job_id)
        same = await session.steps.prepare(found.spec, START, "c-1")
        other = await session.steps.prepare(found.spec, START.model_copy(update={"arguments": {"id": 2}}), "c-2")

    assert [name for name, _ in gate.asked] == ["owls.echo"]
    assert same.decisions["gate"] == "asked_for_job"
    assert other.error_code == "blocked_by_gate"


async def test_a_jobs_steps_count_in_the_run_that_made_it(redis_url: str, owls: ModuleServer) -> None:
    """Each of them names it; a job of no run has none, where the profile counts by runs."""
    limit = {"name": "tool_call_limit", "run_limit": 3}
    settings = Settings.model_validate(
        {"redis_url": redis_url, "module_services": {"owls": owls.url}, "agents": {"brief": {"middleware": [limit]}}}
    )
    brief = ADA.model_copy(update={"agent": "brief"})
    async with ToolFleet(settings=settings) as fleet:
        session: Any = await fleet._sessions.opened()
        steps = list[Any]()
        for place in (PLACE.model_copy(update={"run_id": "one"}), PLACE):
            job = await fleet.jobs.start(START, caller=brief, conversation=place)
            found = await session.jobs._records.get(job.job_id)
            steps.append(await session.steps.prepare(found.spec, START, job.job_id))

    assert (steps[0].run_id, steps[0].thread_id) == ("one", "talk-1")
    assert steps[1].error_code == "rate_limited"


async def test_a_step_is_ready_as_it_was_let_pass_only(fleet: ToolFleet, gate: Gate) -> None:
    """The worker compares, too."""
    job = await fleet.jobs.start(
        None, Poll(tool_name="owls.guarded", arguments={"n": 1}), caller=ADA, conversation=PLACE
    )
    service = (await fleet._sessions.opened()).jobs
    records: JobRecords = service._records
    found = await records.get(job.job_id)
    assert found is not None
    session: Any = await fleet._sessions.opened()
    steps: JobSteps = session.steps
    same = await steps.prepare(found.spec, ToolCall(tool_name="owls.guarded", arguments={"n": 1}), "c-1")
    other = await steps.prepare(found.spec, ToolCall(tool_name="owls.guarded", arguments={"n": 2}), "c-2")

    assert getattr(same, "error_code", None) is None
    assert getattr(other, "error_code", None) == "blocked_by_gate"


@pytest.mark.parametrize(
    ("start", "on_complete"),
    [
        (START, [ToolCall(tool_name="owls.echo", arguments={"task": {"$from": "id"}})]),
        (ToolCall(tool_name="owls.echo", arguments={"task": {"$from": "id"}}), "resume_conversation"),
    ],
)
async def test_only_a_poll_takes_from_the_starts_result(fleet: ToolFleet, start: ToolCall, on_complete: Any) -> None:
    """Elsewhere nobody would fill it in, and the tool would get the marker itself."""
    with pytest.raises(JobRefused, match="only its poll's arguments"):
        await fleet.jobs.start(start, None, on_complete, caller=ADA, conversation=PLACE)


async def test_a_job_is_its_callers(fleet: ToolFleet) -> None:
    """A user's id in a call makes no job that its maker can neither see nor cancel."""
    nobody = Caller(permission="owner", allowed_modules="*")
    with pytest.raises(JobRefused, match="`user_id`"):
        await fleet.jobs.start(ToolCall(tool_name="owls.echo", user_id="bob"), caller=nobody, conversation=PLACE)

    job = await fleet.jobs.start(ToolCall(tool_name="owls.echo", user_id="bob"), caller=ADA, conversation=PLACE)
    assert job.user_id == "ada"
    assert await fleet.jobs.get(job.job_id, ADA) is not None


async def test_a_key_names_a_job_without_a_start(fleet: ToolFleet) -> None:
    """Who hears nothing of Redis asks again, and has one job; another user's is another."""
    bob = ADA.model_copy(update={"user_id": "bob"})
    made = [
        await fleet.jobs.start(
            None, Poll(tool_name="owls.echo"), caller=caller, conversation=PLACE, idempotency_key="watch-1"
        )
        for caller in (ADA, ADA, bob)
    ]

    assert made[0].job_id == made[1].job_id != made[2].job_id
    assert len(await fleet.jobs.list(ADA)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"poll": Poll(tool_name="owls.echo", interval_seconds=31)},
        {"start": ToolCall(tool_name="owls.echo", arguments={"id": 2})},
        {"on_complete": ["notify"]},
        {"start": None, "schedule": Schedule(cron="* * * * *")},
    ],
)
async def test_a_key_stands_for_one_wish(fleet: ToolFleet, redis: Redis, other: dict[str, Any]) -> None:
    """Another one under it is refused, also when the first has ended; the same one is the same job, whenever it is to end."""
    wish: dict[str, Any] = {"start": START, "caller": ADA, "conversation": PLACE, "idempotency_key": "k"}
    job = await fleet.jobs.start(**wish, deadline=50)
    assert (await fleet.jobs.start(**wish, deadline=60)).job_id == job.job_id
    for ends in (False, True):
        if ends:
            await fleet.jobs.cancel(job.job_id, ADA)
        with pytest.raises(JobRefused, match="stands for another one") as error:
            await fleet.jobs.start(**{**wish, **other})
        assert error.value.result.error_code == "conflict"


async def test_what_is_sensitive_is_found_out(fleet: ToolFleet, redis: Redis) -> None:
    """Of the tools whose results a job would keep, and of those that its end calls."""
    login = ToolCall(tool_name="owls.login", arguments={"password": "hunter2"})
    open_job = await fleet.jobs.start(START, None, [login], caller=ADA)
    secret_job = await fleet.jobs.start(None, Poll(tool_name="owls.secretive"), caller=ADA, conversation=PLACE)
    spec = await spec_of(redis, open_job.job_id)

    assert (spec.get("hides_results", False), spec.get("secret_tools", [])) == (False, ["owls.login"])
    spec = await spec_of(redis, secret_job.job_id)
    assert (spec.get("hides_results", False), spec.get("secret_tools", [])) == (True, [])


async def test_all_jobs_of_a_user_are_cancelled(fleet: ToolFleet) -> None:
    """And nobody else's."""
    bob = ADA.model_copy(update={"user_id": "bob"})
    for caller in (ADA, ADA, ADA, bob):
        await fleet.jobs.start(None, Poll(tool_name="owls.echo"), caller=caller, conversation=PLACE)
    service = (await fleet._sessions.opened()).jobs

    assert await service.cancel_all_of("ada") == 3
    assert await service.cancel_all_of("ada") == 0
    assert [job.state for job in await fleet.jobs.list(ADA)] == ["cancelled"] * 3
    assert [job.state for job in await fleet.jobs.list(bob)] == ["waiting"]


async def test_a_job_keeps_the_modules_that_it_was_made_with(fleet: ToolFleet, redis: Redis) -> None:
    """What a caller reaches who names none is decided when the job is made, whatever rules and settings are later."""
    job = await fleet.jobs.start(START, caller=Caller(user_id="bob", permission="user"), conversation=PLACE)
    assert (await spec_of(redis, job.job_id))["caller"]["allowed_modules"] == "*"

    reminder = Schedule(at=fleet_clock.now() + 60)
    job = await fleet.jobs.start(caller=Caller(user_id="gus"), conversation=PLACE, schedule=reminder, message="Owls!")
    kept = (await spec_of(redis, job.job_id))["caller"]["allowed_modules"]
    assert sorted(kept) == sorted(Settings().default_guest_modules)


async def test_a_job_of_an_earlier_agent_reaches_what_it_reached(fleet: ToolFleet) -> None:
    """Its caller names no modules, and by the rule of its time that was what guests reach, whatever the permission."""
    session = await fleet._sessions.opened()
    spec = JobSpec(
        job_id="j", caller=Caller(user_id="ada", permission="owner"), user_id="ada", created_at=1, deadline_at=4e9
    )
    refused = await session.steps.prepare(spec, START, "j.0")
    assert isinstance(refused, ToolResult)
    assert refused.error == "Module 'owls' is not among the caller's modules."

    ready = await session.steps.prepare(spec.model_copy(update={"caller": ADA}), START, "j.0")
    assert not isinstance(ready, ToolResult)


async def test_an_agent_sends_the_modules_that_its_caller_reaches(fleet: ToolFleet) -> None:
    """So that its worker decides alike, whichever version and settings that has."""
    session = await fleet._sessions.opened()
    prepared = await session.prepare(START, Caller(user_id="ada", permission="user"), None, 60)
    assert not isinstance(prepared, ToolResult)
    assert prepared.caller == Caller(user_id="ada", permission="user", allowed_modules="*")
