"""What tests of the command over a gateway share: one gateway of a fleet of their own, and people with keys.

They list all workers, jobs and changes of the fleet, and operate it: other tests would be seen here, and disturbed.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from support.command import Ended, Run
from support.fleet import TestBed, own_bed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
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
    with keyed_gateway(bed, TOOLFLEET_MODULE_NETWORKS="127.0.0.0/8") as gateway:
        yield gateway


@pytest.fixture
def run_as(run: Run, gateway: KeyedGateway, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command as one of the people with a key."""

    def run_as(who: str, *words: str, **options: Any) -> Ended:
        monkeypatch.setenv("TOOLFLEET_GATEWAY_URL", gateway.url)
        monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys[who].text)
        return run(*words, **options)

    return run_as
