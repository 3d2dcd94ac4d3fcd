"""What tests of routes share: a gateway of the fleet with the owls, and clients with keys."""

from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.worker_process import WorkerProcess


@pytest.fixture(scope="session")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway(bed) as gateway:
        yield gateway
