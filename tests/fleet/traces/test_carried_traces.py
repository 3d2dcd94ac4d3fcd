"""Traces that are carried where no message goes: into a folder's process, over the time that people take, from step to step of a round."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from support.fleet import TestBed, program
from support.gateways.gateway_process import gateway_process
from support.hosts.host_process import folder_host_process
from support.modules.listed_modules import until_listed
from support.traces.agent_program import ANN, SPAN, TracedAgent, traced_agent
from support.traces.otlp_receiver import OtlpReceiver, ReceivedSpan
from support.waiting import PATIENCE_SECONDS, wait_until_answered, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet import Approver, ToolFleet
from toolfleet_cli.local.environment import beat_command, environment_of
from toolfleet_registry.redis.keys import Keys

EXPORTED = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_SCHEDULE_DELAY"]
TOOLS = """
from opentelemetry import trace
from toolfleet.sdk import ToolError, tool

def where() -> str:
    with trace.get_tracer("nests").start_as_current_span("look into it"):
        return f"{trace.get_current_span().get_span_context().trace_id:032x}"

@tool(effect="read")
def count() -> str:
    '''In a thread.'''
    return where()

@tool(effect="read")
async def hatch() -> str:
    '''In the loop.'''
    where()
    raise ToolError("too early")
"""
GUARDED = "guarded"
APPROVED = {GUARDED: {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.*"]}]}}
BEAT = "beat: Starting"
BOSS = Approver("command line", "bob", "admin")


@pytest.fixture(scope="module")
def nests(
    traced_bed: TestBed,
    traced_worker: WorkerProcess,
    collector: OtlpReceiver,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[TracedAgent]:
    """An agent, and a folder whose processes may export."""
    del traced_worker
    folder = tmp_path_factory.mktemp("home") / "nests"
    folder.mkdir()
    (folder / "nests.py").write_text(TOOLS)
    spec = {"nests": {"folder": str(folder), "variables": EXPORTED}}
    env = {"TOOLFLEET_REDIS_URL": traced_bed.redis_url, "TOOLFLEET_HOSTS": json.dumps(spec), **collector.environment}
    with folder_host_process(folder, "--port", "0", env=env, name="nests"):
        asyncio.run(_listed(traced_bed))
        yield request.getfixturevalue("agent")  # it begins now, and so knows the folder


async def _listed(bed: TestBed) -> None:
    async with ToolFleet(settings=bed.settings) as fleet:
        await until_listed(fleet, ANN, "owls", "nests")


@pytest.mark.parametrize(("tool", "is_fine"), [("nests.count", True), ("nests.hatch", False)], ids=["thread", "loop"])
def test_a_folders_function_is_in_the_trace_of_its_call(
    nests: TracedAgent, collector: OtlpReceiver, tool: str, *, is_fine: bool
) -> None:
    """Its process has a span of its own below its host's, and what the function begins itself is below that."""
    said = nests.call(tool)
    execute = f"execute_tool {tool}"
    names = (SPAN, "send tools.nests", "process tools.nests", execute, "POST", "POST /execute", execute, "look into it")
    *_, served, own, looked = collector.wait_for(*names, trace_id=said["trace_id"])

    assert said["success"] is is_fine
    assert said["result"] == (said["trace_id"] if is_fine else None)
    assert (own.kind, own.service, served.service) == ("INTERNAL", "nests", "nests")
    assert own.error == served.error == (None if is_fine else "tool_error")
    assert (own.parent_id, looked.parent_id) == (served.span_id, own.span_id)
    assert len(collector.trace(said["trace_id"])) == len(names)


@pytest.fixture
def guarded(traced_bed: TestBed, collector: OtlpReceiver, request: pytest.FixtureRequest) -> Iterator[TestBed]:
    """A fleet of its own, where people approve what an agent does."""
    more = {**traced_bed.more, "agents": APPROVED, "key_prefix": f"{request.node.name.rpartition('[')[2][:-1]}:"}
    bed = TestBed(traced_bed.redis_url, traced_bed.modules, traced_bed.folder, more)
    with bed.worker(env=collector.environment):
        yield bed


async def _waiting(bed: TestBed) -> str:
    """The id of the only call that waits for people."""
    async with ToolFleet(settings=bed.settings) as fleet:
        await wait_until_answered(fleet.approvals.list, "a call waits for people", seconds=2 * PATIENCE_SECONDS)
        (found,) = await fleet.approvals.list()
        return found.approval_id


async def _approved_here(bed: TestBed, approval_id: str) -> None:
    async with ToolFleet(settings=bed.settings) as fleet:
        await fleet.approvals.approve(approval_id, BOSS)


async def _approved_there(bed: TestBed, approval_id: str, env: dict[str, str]) -> None:
    with gateway_process(bed, env=env) as gateway:
        async with gateway.client() as client:
            answer = await client.post(f"/approvals/{approval_id}", json={"decision": "approve"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("decider", ["untraced", "gateway"])
def test_an_approved_call_goes_on_in_its_agents_trace(guarded: TestBed, collector: OtlpReceiver, decider: str) -> None:
    """Whoever decides publishes it, traced or not: it belongs to the agent's span, where it was made."""
    agents = {**environment_of(guarded.settings), **collector.environment, "AGENT_PROVIDER": "own"}
    with traced_agent(agents) as agent:
        agent.begin("owls.read", {"agent": GUARDED, "waits_for_approval": 30}, name=decider)
        approval_id = asyncio.run(_waiting(guarded))
        is_here = decider == "untraced"
        asyncio.run(
            _approved_here(guarded, approval_id)
            if is_here
            else _approved_there(guarded, approval_id, collector.environment)
        )
        said = agent.end()
        names = ("process tools.owls",) if is_here else ("process tools.owls", "send tools.owls")
        process, *_ = collector.wait_for(*names, trace_id=said["trace_id"])
    sent = collector.named("send tools.owls", said["trace_id"])

    assert said["success"], said
    assert [span.service for span in sent] == ([] if is_here else ["toolfleet-gateway"])
    assert [span.parent_id for span in [*sent, process]] == [said["span_id"], *(span.span_id for span in sent)]


def test_the_steps_of_a_round_are_in_one_trace(
    traced_bed: TestBed, agent: TracedAgent, collector: OtlpReceiver
) -> None:
    """Each round has its own, and each of its steps a link to where the job was made."""
    never = {"arguments": {"name": "round"}, "until": {"status": ["over"]}, "max_seconds": 4}
    with Redis.from_url(traced_bed.redis_url) as redis, program(traced_bed, beat_command(), "beat", ready=BEAT):
        said = agent.start_rounds("owls.read", "0 0 1 1 *", never)
        for count in (1, 2):
            wait_until_sync(
                lambda: _rests(redis, said["result"]), "it waits for the new year", seconds=2 * PATIENCE_SECONDS
            )
            _make_due(redis, said["result"])
            collector.wait(lambda: _rounds(collector, said["result"]) == count, f"{count} rounds of steps")  # noqa: B023 - over before the next
    steps = _steps(collector, said["result"])

    assert said["trace_id"] not in {span.trace_id for span in steps}
    assert {(link.trace_id, link.span_id) for span in steps for link in span.links} == {
        (said["trace_id"], said["span_id"])
    }
    assert {span.parent_id for span in steps} == {""}


def _steps(collector: OtlpReceiver, job_id: str) -> list[ReceivedSpan]:
    return [span for span in collector.named("run_job") if span.attributes["toolfleet.job_id"] == job_id]


def _rounds(collector: OtlpReceiver, job_id: str) -> int:
    """How many traces have several steps, each with its call."""
    steps = Counter(span.trace_id for span in _steps(collector, job_id))
    called = Counter(span.trace_id for span in collector.named("process tools.owls"))
    return sum(1 for trace_id, count in steps.items() if count > 1 and called[trace_id] > 1)


def _place(redis: "Redis", job_id: str) -> dict[str, Any]:
    found: Any = redis.hget(Keys().job(job_id), "at")
    place: dict[str, Any] = json.loads(found)
    return place


def _rests(redis: "Redis", job_id: str) -> bool:
    place = _place(redis, job_id)
    return bool(place["state"] == "waiting" and place["due_at"] > time.time() + 60)


def _make_due(redis: "Redis", job_id: str) -> None:
    """Have a round begin: nobody else moves the job until the new year."""
    redis.hset(Keys().job(job_id), "at", json.dumps({**_place(redis, job_id), "due_at": 1.0}))
    redis.zadd(Keys().jobs_due, {job_id: 1})
