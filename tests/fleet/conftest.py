"""What tests of whole fleets share: one whose agents and workers have a signing key."""

from collections.abc import Iterator

import pytest

from support.fleet import SIGNING_KEY, TestBed
from support.module_server import ModuleServer
from support.worker_process import WorkerProcess
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="module")
def signed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet that signs, on a Redis of its own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {"signing_key": SIGNING_KEY})


@pytest.fixture(scope="module")
def signed_worker(signed: TestBed) -> Iterator[WorkerProcess]:
    with signed.worker() as worker:
        yield worker
