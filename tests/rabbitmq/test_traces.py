"""A trace goes through RabbitMQ with its call."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.sdk_program import running
from support.servers.rabbitmq import RabbitMq
from support.traces.agent_program import traced_agent
from support.traces.conventions import faults_of
from support.traces.otlp_receiver import OtlpReceiver, otlp_receiver
from toolfleet_cli.local.environment import environment_of


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver
    assert faults_of(receiver.spans) == []


def test_a_call_and_its_retry_are_of_one_trace(
    broker: RabbitMq, redis_url: str, collector: OtlpReceiver, tmp_path: Path
) -> None:
    """Celery's own message has the same headers as the fleet's, and a retry keeps them."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "logs").mkdir()
    with running(tmp_path / "journal", env=collector.environment) as module:
        modules = (ModuleServer("owls", url=module.url),)
        bed = TestBed(redis_url, modules, tmp_path / "logs", {"broker_url": broker.url})
        env = {**environment_of(bed.settings), **collector.environment, "AGENT_PROVIDER": "own"}
        with bed.worker(env=collector.environment), traced_agent(env) as agent:
            said = agent.call("owls.second_time", name="rabbit", kind="busy")
            collector.wait_for(*["process tools.owls"] * 2, trace_id=said["trace_id"])

    assert said["success"]
