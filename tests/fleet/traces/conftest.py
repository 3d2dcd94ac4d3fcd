"""A fleet whose agent, worker and module export to a collector of the test's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.sdk_program import running
from support.traces.agent_program import TracedAgent, traced_agent
from support.traces.conventions import faults_of
from support.traces.otlp_receiver import OtlpReceiver, otlp_receiver
from support.traces.woken_core import Core, woken_core
from support.worker_process import WorkerProcess
from support.workers.wakes import SECRET
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    """A collector; whatever a file's tests have sent it is held against the table of the conventions at the end."""
    with otlp_receiver() as receiver:
        yield receiver
    assert faults_of(receiver.spans) == []


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the module's journal, where a file `go` lets waiting calls go on."""
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def traced_bed(collector: OtlpReceiver, journal: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """Redis, and a module on the SDK."""
    settings = {"jobs_interval_seconds": 0.1, "visibility_timeout": 2}
    with (
        redis_server(tmp_path_factory.mktemp("redis")) as url,
        running(journal, env=collector.environment) as module,
    ):
        yield TestBed(url, (ModuleServer("owls", url=module.url),), tmp_path_factory.mktemp("logs"), settings)


@pytest.fixture(scope="module")
def traced_worker(traced_bed: TestBed, collector: OtlpReceiver, core: Core) -> Iterator[WorkerProcess]:
    with traced_bed.worker(env=collector.environment, core_url=core.url, core_secret=SECRET) as worker:
        yield worker


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with woken_core() as core:
        yield core


@pytest.fixture(scope="module")
def agent(traced_bed: TestBed, traced_worker: WorkerProcess, collector: OtlpReceiver) -> Iterator[TracedAgent]:
    """An agent with a provider of its own."""
    del traced_worker
    env = {**environment_of(traced_bed.settings), **collector.environment, "AGENT_PROVIDER": "own"}
    with traced_agent(env) as agent:
        yield agent
