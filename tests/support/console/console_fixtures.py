"""What tests of the console share, in a browser and without one: a gateway of a fleet that has something to show.

A `conftest.py` imports them, and so has a fleet of its own.
"""

from collections.abc import Iterator

import pytest

from support.console.console_fleet import console_bed
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with console_bed(tmp_path_factory.mktemp("console")) as bed:
        yield bed


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    """Of this fleet: that of other tests has another Redis."""
    with bed.worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def gateway(bed: TestBed, worker: WorkerProcess) -> Iterator[KeyedGateway]:
    with keyed_gateway(bed) as gateway:
        yield gateway
