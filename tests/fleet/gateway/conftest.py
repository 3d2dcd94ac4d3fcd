"""What tests of calls over REST share: two gateways over one Redis, with a worker."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.waiting import wait_until
from support.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def one(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """A gateway."""
    with gateway_process(bed) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def two(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """Another one, over the same Redis."""
    with gateway_process(bed) as gateway:
        yield gateway


@pytest.fixture
async def here(bed: TestBed, one: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first gateway."""
    await wait_until(lambda: not any(each.running for each in bed.modules), "what other tests have left has ended")
    for module in bed.modules:
        module.forget()
    async with one.client() as client:
        yield client


@pytest.fixture
async def there(two: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the other gateway."""
    async with two.client() as client:
        yield client
