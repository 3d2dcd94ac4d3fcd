"""Traces where something dies, hangs or is switched off: no call is lost, doubled or held up for them."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.traces.agent_program import traced_agent
from support.traces.otlp_receiver import OtlpReceiver
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.spans import attempt_span_id

UNSAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}


@pytest.fixture
def hanging() -> Iterator[str]:
    """The URL of a collector that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def away() -> str:
    """The URL of a collector that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_dead_workers_attempt_is_linked_by_the_one_that_follows(
    traced_bed: TestBed, collector: OtlpReceiver, journal: Path
) -> None:
    """The dead worker has exported nothing of it: the number of its span follows from the call's id all the same."""
    env = {**environment_of(traced_bed.settings), **collector.environment, "AGENT_PROVIDER": "own"}
    written = journal / "journal"
    with traced_bed.worker(env=collector.environment) as first, traced_agent(env) as agent:
        agent.begin("owls.read", name="reclaimed", wait=True)
        wait_until_sync(lambda: written.exists() and "reclaimed" in written.read_text(), "the tool runs")
        first.send_signal(signal.SIGKILL)
        first.wait()
        journal.joinpath("go").touch()
        with traced_bed.worker(env=collector.environment):
            said = agent.end()
            (process,) = collector.wait_for("process tools.owls", trace_id=said["trace_id"])
    journal.joinpath("go").unlink()

    linked = {link.attributes["toolfleet.linked_as"]: link.span_id for link in process.links}
    assert said["success"]
    assert process.attributes["toolfleet.attempt"] == 2
    assert linked["lost_attempt"] == f"{attempt_span_id(said['call_id'], 1):016x}"
    assert linked["creation"] == process.parent_id


def test_what_is_not_sampled_is_exported_by_nobody(traced_bed: TestBed, collector: OtlpReceiver) -> None:
    """The agent decides; worker and module are told so in the message and in the request, and keep to it."""
    agents = {**environment_of(traced_bed.settings), **collector.environment, **UNSAMPLED}
    with traced_bed.worker(env=collector.environment) as worker, traced_agent(agents) as agent:
        said = agent.call("owls.read", name="unsampled")
        assert agent.leave() == 0
        worker.send_signal(signal.SIGTERM)
        worker.wait()

    assert said["success"]
    assert said["imported"]
    assert collector.of_call(said["call_id"]) == []


def test_where_nothing_is_traced_nothing_of_it_is_loaded(traced_bed: TestBed, owls: ModuleServer) -> None:
    """Neither in an agent nor on the wire."""
    owls.forget()
    bed = TestBed(traced_bed.redis_url, (owls,), traced_bed.folder, {"key_prefix": "untraced:"})
    with bed.worker(), traced_agent(environment_of(bed.settings)) as agent:
        said = agent.call("owls.echo", a=1)

    assert said["success"]
    assert not said["imported"]
    assert not any("traceparent" in {name.lower() for name in headers} for headers in owls.headers)


@pytest.mark.parametrize("collector_is", ["hanging", "away"])
def test_a_collector_that_does_not_answer_costs_no_call(
    traced_bed: TestBed, request: pytest.FixtureRequest, collector_is: str
) -> None:
    """Calls end as ever, more of them than are kept for it; and agent and worker end in time, whatever was not sent."""
    url = request.getfixturevalue(collector_is)
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BSP_MAX_QUEUE_SIZE": "8"}
    exporting["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] = "4"
    agents = {**environment_of(traced_bed.settings), **exporting}
    with traced_bed.worker(env=exporting) as worker, traced_agent(agents) as agent:
        ends = [agent.call("owls.read", name=f"{collector_is} {number}") for number in range(20)]
        assert agent.leave(seconds=2 * PATIENCE_SECONDS) == 0
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(seconds=2 * PATIENCE_SECONDS)

    assert all(said["success"] for said in ends)
    assert code == 0


def test_a_process_that_ends_has_sent_what_it_has_ended(traced_bed: TestBed, collector: OtlpReceiver) -> None:
    """The last spans of agent and worker are not lost with them, however rarely they export."""
    rarely = {**collector.environment, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    agents = {**environment_of(traced_bed.settings), **rarely}
    with traced_bed.worker(env=rarely) as worker, traced_agent(agents) as agent:
        said = agent.call("owls.read", name="last words")
        assert agent.leave() == 0
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    names = {span.name for span in collector.of_call(said["call_id"])}

    assert {"send tools.owls", "process tools.owls", "execute_tool owls.read"} <= names


def test_an_agent_has_no_provider_of_ours_set_for_it(traced_bed: TestBed, collector: OtlpReceiver) -> None:
    """What it sets up later is its own: nobody's global provider is replaced, or made."""
    agents = {**environment_of(traced_bed.settings), **collector.environment, "TOOLFLEET_TRACES": "true"}
    with traced_bed.worker(), traced_agent(agents) as agent:
        said = agent.call("owls.read", name="guest")
        agent.leave()

    assert said["success"]
    assert [span.service for span in collector.of_call(said["call_id"]) if span.kind == "PRODUCER"] == [
        "toolfleet-agent"
    ]
