"""What tests of paused queues share: a fleet of their own, on the stock transport, whose modules count their calls."""

from collections.abc import AsyncIterator, Iterator

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.worker_process import WorkerProcess
from toolfleet import ToolFleet
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="module")
def larks() -> Iterator[ModuleServer]:
    """A second module, of the slow lane with the third."""
    with serve(make_module("larks")) as module:
        yield module


@pytest.fixture(scope="module")
def wrens() -> Iterator[ModuleServer]:
    with serve(make_module("wrens")) as module:
        yield module


@pytest.fixture(scope="module")
def bed(
    owls: ModuleServer,
    larks: ModuleServer,
    wrens: ModuleServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestBed]:
    more = {"fast_transport": False, "slow_modules": frozenset({"larks", "wrens"})}
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls, larks, wrens), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet
