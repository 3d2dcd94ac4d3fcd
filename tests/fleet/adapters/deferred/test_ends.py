"""How deferred work ends: each framework's model reads what has become of it, and nothing is repeated by itself."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import structlog
from agents import Runner
from agents.testing import ScriptedModel, assistant_message, function_call
from langgraph.checkpoint.memory import InMemorySaver
from mcp import Client
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolApproved, ToolCallPart

from fleet.adapters.deferred.conftest import STATE, LongWork, each_once
from support.fleet import TestBed
from support.frameworks.deferred_runs import RUNS, ClaudeRun, GraphRun
from support.frameworks.pydantic_script import PydanticScript
from support.module_server import ModuleServer, serve
from support.modules.works import QUICK, Works
from support.servers.hatchery import Hatchery, make_hatchery
from support.servers.redis_faults import faulty_redis
from support.streams.tcp_proxy import tcp_proxy
from support.waiting import wait_until
from toolfleet import Caller, Job, Poll, ToolDefinition, ToolFleet
from toolfleet.adapters.claude import fleet_server
from toolfleet.adapters.openai_agents import FleetAgent, FleetTools
from toolfleet.adapters.pydantic_ai import FleetToolset
from toolfleet_tasks.adapters.calling import AdapterCalls, DeferredStep, FrameworkCall, StillRunning
from toolfleet_tasks.calls import dispatcher

Modules = tuple[ModuleServer, Hatchery, Works]
each_framework = pytest.mark.parametrize("framework", RUNS)
UNKNOWN = "effect_state: unknown\nretryable: false\n"


def asked(caller: Caller, tool: str, arguments: object) -> FrameworkCall:
    return FrameworkCall(ToolDefinition(name=tool, effect="once"), tool.replace(".", "__"), arguments, caller, "r", "c")


@each_framework
async def test_a_job_that_fails_says_so(fleet: ToolFleet, ada: Caller, modules: Modules, framework: str) -> None:
    """With its last words, and that nobody knows how far its effect has come."""
    works = modules[2]
    run = RUNS[framework](ada, "works__begin", {}, uuid4().hex, jobs={"works.begin": STATE})
    works.pieces.clear()
    _, kept = await run.begin(fleet)
    await wait_until(lambda: bool(works.pieces), "it has begun")
    works.pieces.update(dict.fromkeys(works.pieces, "failed"))

    shown, _ = await run.go_on(fleet, kept)

    assert f"error_code: module_error\n{UNKNOWN}hint: It may have been executed" in str(shown)


@each_framework
async def test_a_job_that_is_too_slow_has_timed_out(
    fleet: ToolFleet, ada: Caller, modules: Modules, framework: str
) -> None:
    """By its poll's own bound."""
    poll = STATE.model_copy(update={"max_seconds": 0.5})
    run = RUNS[framework](ada, "works__begin", {}, uuid4().hex, jobs={"works.begin": poll})
    _, kept = await run.begin(fleet)

    shown, _ = await run.go_on(fleet, kept)

    assert f"error_code: timed_out\n{UNKNOWN}" in str(shown)


async def test_a_job_that_cannot_be_made_is_refused_at_once(fleet: ToolFleet, ada: Caller) -> None:
    """Nothing is deferred, and the model reads why."""
    poll = Poll(tool_name="works.admins_state", arguments={"id": "x"})

    step = asked(ada, "works.begin", {"n": uuid4().hex})  # the same one would bring the job that another test has made
    result = await AdapterCalls(fleet, jobs={"works.begin": poll}).call(step)

    assert (result.error_code, result.effect_state) == ("permission_denied", "none")


@each_once
async def test_what_is_cancelled_meanwhile_has_ended_so(
    bed: TestBed, fleet: ToolFleet, ada: Caller, work: LongWork, framework: str
) -> None:
    """By its id, in whichever process: an application takes back what its run waits for."""
    run = work.run(framework, ada)
    known, kept = await run.begin(fleet)
    await wait_until(lambda: work.times() == 1, "it has begun")
    call_id = known["toolfleet_call_id"]
    async with Client(fleet_server(fleet, ada, defer_after=1)["instance"]) as client:
        await client.call_tool("call_cancel", {"call_id": call_id})

    shown, _ = await run.go_on(fleet, kept)

    assert "error_code: cancelled\neffect_state: unknown" in str(shown)
    assert work.times() == 1


async def test_an_id_stands_for_its_arguments(fleet: ToolFleet, ada: Caller, work: LongWork) -> None:
    """A step with other arguments than those of the call that its run has kept brings no result, and begins nothing."""
    calls = AdapterCalls(fleet, **work.options)
    with pytest.raises(StillRunning) as deferred:
        await calls.call(asked(ada, work.tool, {}))
    await wait_until(lambda: work.times() == 1, "it has begun")
    work.end()

    other = await calls.resumed(deferred.value.step, asked(ada, work.tool, {"text": "another"}))
    same = await calls.resumed(deferred.value.step, asked(ada, work.tool, {}))

    assert (other.error_code, other.effect_state) == ("outcome_unknown", "unknown")
    assert "was made with other arguments" in str(other.error)
    assert same.success
    assert work.times() == 1


async def test_a_step_that_redis_has_not_confirmed_brings_the_first_ones_result(
    bed: TestBed, fleet: ToolFleet, ada: Caller, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When Redis answers again it has joined the call that its step has made before, whose id it does not have: it is not deferred."""
    monkeypatch.setattr(dispatcher, "_PUBLISH_SECONDS", 0.2)
    modules[0].forget()
    nap = asked(ada, "owls.nap_once", {"seconds": 0, "n": uuid4().hex})
    first = await AdapterCalls(fleet).call(nap)
    port = urlsplit(bed.redis_url).port or 0
    with tcp_proxy(port) as proxy, structlog.testing.capture_logs() as logs:
        settings = bed.settings.model_copy(update={"redis_url": bed.redis_url.replace(f":{port}", f":{proxy.port}")})
        async with ToolFleet(settings=settings) as behind:

            class CutOff(AdapterCalls):
                async def step_before(self, asked: FrameworkCall) -> DeferredStep | None:
                    found = await super().step_before(asked)
                    proxy.hold()
                    return found

            again = asyncio.create_task(CutOff(behind, defer_after=0).call(nap))
            await wait_until(lambda: "publish_not_confirmed" in {line["event"] for line in logs}, "nobody confirms it")
            proxy.release()
            second = await again

    assert first.success
    assert (second.result, second.audit.call_id) == (first.result, first.audit.call_id)
    assert len(modules[0].calls("nap_once")) == 1


async def test_a_run_that_is_cancelled_takes_back_only_the_job_that_it_has_made(
    fleet: ToolFleet, ada: Caller, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that comes again only waits."""
    works = modules[2]
    works.pieces.clear()
    calls = AdapterCalls(fleet, defer_after=60, jobs={"works.begin": STATE})
    call = asked(ada, "works.begin", {"n": uuid4().hex})
    assert await calls.step_before(call) is None

    first = asyncio.create_task(calls.call(call))
    await wait_until(lambda: bool(works.pieces), "it has begun")
    step = await calls.step_before(call)
    assert step is not None

    async def state() -> str | None:
        job = await fleet.jobs.get(step.call_id, ada)
        return None if job is None else job.state

    get, cancel, questions = fleet.jobs.get, fleet.jobs.cancel, Counter[asyncio.Task[Any] | None]()
    taken_back = list[str]()

    async def noted(job_id: str, caller: Caller) -> Job | None:
        questions[asyncio.current_task()] += 1
        return await get(job_id, caller)

    async def noted_cancel(job_id: str, caller: Caller) -> Job | None:
        taken_back.append(job_id)
        return await cancel(job_id, caller)

    monkeypatch.setattr(fleet.jobs, "get", noted)
    monkeypatch.setattr(fleet.jobs, "cancel", noted_cancel)
    again = asyncio.create_task(calls.call(call))
    await wait_until(lambda: questions[again] == 3, "it has found the job, and asked again for its end")
    again.cancel()
    await asyncio.wait({again})
    assert await state() in {"starting", "waiting", "polling"}

    first.cancel()
    await asyncio.wait({first})
    result = await calls.resumed(step, call, patience=10)
    assert (result.error_code, result.effect_state) == ("cancelled", "unknown")
    assert taken_back == [step.call_id]


async def test_a_job_begins_with_the_arguments_that_people_have_edited(
    fleet: ToolFleet, ada: Caller, modules: Modules
) -> None:
    """Another toolset has asked them, before there was a job."""
    works = modules[2]
    works.forget()
    toolset = FleetToolset[object](fleet, ada, jobs={"works.begin": STATE}).approval_required()
    model = PydanticScript([ToolCallPart("works__begin", {"n": "1"}, "c1")]).model()
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    ran = await agent.run("Go.")
    edited = DeferredToolResults(approvals={"c1": ToolApproved(override_args={"n": "2"})})
    await agent.run(message_history=ran.all_messages(), deferred_tool_results=edited)
    await wait_until(lambda: bool(works.pieces), "it has begun")
    assert [call["arguments"] for call in works.server.calls("begin")] == [{"n": "2"}]


async def test_a_graph_goes_on_without_a_resume_value(fleet: ToolFleet, ada: Caller, work: LongWork) -> None:
    """As a process does that has died while it waited: the node runs again, and joins."""
    run = GraphRun(ada, work.tool.replace(".", "__"), {}, uuid4().hex, **work.options)
    saver = InMemorySaver()
    graph = run.graph(fleet, saver, run.call)
    await graph.ainvoke({"messages": [("user", "Go.")]}, run.thread)
    await wait_until(lambda: work.times() == 1, "it has begun")
    work.end()

    state = await run.graph(fleet, saver, **{**run.options, "defer_after": 30}).ainvoke(None, run.thread)

    assert state["messages"][-1].content == "done"
    assert work.times() == 1


async def test_a_state_that_is_approved_too_early_or_for_good_waits(
    fleet: ToolFleet, ada: Caller, work: LongWork
) -> None:
    """A tool that is approved for good is never asked about again: its next call is made, and waited for."""
    name = work.tool.replace(".", "__")
    steps = [[function_call(name, '{"n": 1}', call_id="c1")], [function_call(name, '{"n": 2}', call_id="c2")]]
    run_id = uuid4().hex
    tools = FleetTools(fleet, ada, run_id=lambda _: run_id, **work.options)
    agent = FleetAgent[Any](name="agent", model=ScriptedModel([*steps, [assistant_message("done")]]), fleet_tools=tools)
    ran = await Runner.run(agent, "Go.")
    (item,) = ran.interruptions
    state = ran.to_state()
    state.approve(item, always_approve=True)

    going_on = asyncio.create_task(Runner.run(agent, state))
    await wait_until(lambda: work.times() == 1, "the first one has begun")
    work.end()
    await _ended_once_more(work, lambda: work.times() == 2)

    again = await going_on
    assert again.final_output == "done"
    assert len([each for each in again.new_items if each.type == "tool_call_output_item"]) == 2
    assert work.times() == 2


async def _ended_once_more(work: LongWork, has_begun: Callable[[], bool]) -> None:
    await wait_until(has_begun, "the second one has begun")
    work.end()


async def test_claude_asks_for_its_calls(fleet: ToolFleet, ada: Caller, work: LongWork) -> None:
    """It is offered the tools for that, and reads where a call is; what is no call of its own is none."""
    run = ClaudeRun(ada, work.tool.replace(".", "__"), {}, uuid4().hex, **work.options)
    known, _ = await run.begin(fleet)
    await wait_until(lambda: work.times() == 1, "it has begun")
    call_id = known["toolfleet_call_id"]
    async with Client(fleet_server(fleet, ada, **work.options)["instance"]) as client:
        offered = {tool.name for tool in (await client.list_tools()).tools}
        said = [
            str((await client.call_tool("call_status", arguments)).content)
            for arguments in ({"call_id": call_id}, {"call_id": "x"}, {"call_id": 7})
        ]
        again = await client.call_tool(run.name, {}, meta=run.meta)
    async with Client(fleet_server(fleet, ada)["instance"]) as client:
        without = {tool.name for tool in (await client.list_tools()).tools}

    assert {"call_status", "call_wait", "call_cancel"} <= offered
    assert not {"call_status", "call_wait", "call_cancel"} & without
    assert f"Call {call_id} of works.state is" in said[0] or f"Call {call_id} of {work.tool} is" in said[0]
    assert "There is no such call" in said[1]
    assert "must be the text" in said[2]
    assert (again.meta or {})["toolfleet_call_id"] == call_id
    assert work.times() == 1


async def test_workers_and_redis_may_start_anew_in_between(ada: Caller, tmp_path: Path) -> None:
    """A call that its module has accepted goes on without a worker, and a Redis that comes back knows it, whatever its framework has kept."""
    hatchery = make_hatchery()
    runs = [make(ada, "nest__hatch", {}, uuid4().hex, defer_after=0.1) for make in RUNS.values()]
    with serve(hatchery.server), faulty_redis(tmp_path) as redis:
        bed = TestBed(redis.url, (hatchery.server,), tmp_path, {**QUICK, "visibility_timeout": 4})
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                kept = [(await run.begin(fleet))[1] for run in runs]
                await wait_until(
                    lambda: len({each["handle"] for each in hatchery.asked}) == len(runs),
                    "the module has accepted them",
                )
        with redis.restarted():
            pass
        hatchery.ends = 0
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet:
                shown = [(await run.go_on(fleet, text))[0] for run, text in zip(runs, kept, strict=True)]

    assert all("an owl" in str(each) for each in shown), shown
    assert len(hatchery.begun) == len(runs)
