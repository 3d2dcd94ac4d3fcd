"""What tests of the console share: a gateway of a fleet that has something to show."""

from collections.abc import Iterator

import pytest

from support.console.console_fixtures import bed, worker
from support.fleet import TestBed
from support.gateways.gateway_here import keyed_gateway_here
from support.gateways.keyed_gateway import KeyedGateway
from support.worker_process import WorkerProcess

__all__ = ["bed", "worker"]


@pytest.fixture(scope="module")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway_here(bed) as gateway:
        yield gateway
