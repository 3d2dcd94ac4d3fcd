"""What tests of routes share: a gateway of a fleet of their own, and clients with keys.

Operators disable its tools, pin its module and pause its queues: other tests' calls would be refused for a while.
"""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed, own_bed
from support.gateways.gateway_here import keyed_gateway_here
from support.gateways.keyed_gateway import KeyedGateway
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    with serve(make_module()) as module:
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with own_bed(owls, tmp_path_factory.mktemp("fleet")) as bed:
        yield bed


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway_here(bed, module_networks=("127.0.0.0/8",)) as gateway:
        yield gateway
