"""A fleet whose calls wait in RabbitMQ and whose results come through Redis."""

from collections.abc import AsyncIterator, Iterator

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.servers.rabbitmq import RabbitMq, is_installed, rabbitmq
from support.waiting import wait_until, wait_until_sync
from toolfleet import ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.contracts.names import PROGRAMS
from toolfleet_tasks.queues import CONTROL, queue_of

QUEUE = "tools.owls"
QUEUES = [CONTROL, *map(queue_of, ("owls", "ravens", "larks", "nest", "desk", "nursery", "works", PROGRAMS))]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    if not is_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    with rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server
        kept = {queue for queue in server.kept() if not queue.endswith(".celery.pidbox")}
    assert kept <= {*QUEUES}, "a test has a queue that `_empty` does not know"


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    """Each test begins with empty queues: RabbitMQ keeps calls beyond their deadlines, and all fleets of this folder have the same ones."""
    if "broker" not in request.fixturenames:
        return
    broker: RabbitMq = request.getfixturevalue("broker")
    if not {"worker", "gateway"} & set(request.fixturenames):
        wait_until_sync(lambda: not broker.consumers(QUEUE), "other tests' workers have ended")
    for queue in QUEUES:
        broker.purge(queue)


@pytest.fixture(scope="session")
def bed(broker: RabbitMq, owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    # Workers here have a slot or two, and twice as many calls would be all that one caller may submit.
    more = {"broker_url": broker.url, "calls_per_caller": 1000}
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture
async def fleet(bed: TestBed, owls: ModuleServer) -> AsyncIterator[ToolFleet]:
    """An agent's fleet without any worker."""
    await wait_until(lambda: not owls.running, "what other tests have left has ended")
    owls.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet
