"""What tests of MCP clients share: a fleet of their own, with a module that says how far it is, behind a gateway."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.worker_process import WorkerProcess
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="package")
def talker() -> Talker:
    return Talker([(0.25, "reading"), (0.75, "writing")])


@pytest.fixture(scope="package")
def owls(talker: Talker) -> Iterator[ModuleServer]:
    """The usual module, with a tool that says how far it is."""
    module = make_module()
    module.add("talk", talker, effect="read")
    with serve(module):
        yield module


@pytest.fixture(scope="package")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="package")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture(scope="package")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """A gateway where a call of a second is a long one, and one tool is only for clients that take tasks."""
    env = {"TOOLFLEET_MCP_TASK_TOOLS": "owls.nap_once"}
    with gateway_process(bed, env=env) as gateway:
        yield gateway
