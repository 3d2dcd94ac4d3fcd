"""One Redis, one module and one worker for all tests of a file that do not break them."""

from collections.abc import AsyncIterator, Iterator

import pytest

from support.fleet import TestBed, WorkerProcess
from support.module_server import ModuleServer, serve
from support.owls import make_module
from toolfleet import Caller, ToolFleet
from toolfleet_workers.redis_server import redis_server

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    """A module with tools that work, nap, fail, turn away and garble."""
    with serve(make_module()) as module:
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    """An agent's fleet, with a worker."""
    for module in bed.modules:
        module.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def owner() -> Caller:
    return OWNER
