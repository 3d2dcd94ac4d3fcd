"""What tests in virtual time share: a Redis whose clock jumps, and a fleet over it."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from random import Random

import pytest

from bed.fleet import Bed, open_bed
from bed.loop import VirtualLoop
from bed.redis import VirtualRedis
from support.module_server import ModuleServer
from support.owls import make_module
from toolfleet_registry.system import fleet_clock


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    """Run every test on a loop of its own that never waits. BED_SEED: what is ready at once is read in another order."""
    seed = os.environ.get("BED_SEED")
    return {"virtual": lambda: VirtualLoop(None if seed is None else Random(seed))}


@pytest.fixture(scope="session")
def virtual_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualRedis]:
    """The process's Redis server."""
    server = VirtualRedis(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_process_url(virtual_redis: VirtualRedis) -> str:
    """Have whoever asks for `redis_url` or `redis` get this server."""
    return virtual_redis.url


@pytest.fixture
def owls() -> ModuleServer:
    """A module with tools that work, nap, fail, turn away and garble."""
    return make_module()


@pytest.fixture
def redis_url(redis_url: str) -> str:
    """Its URL, empty and checked as everywhere. This process's fleet clock has not heard of any Redis yet."""
    fleet_clock.clock.forget()
    return redis_url


@pytest.fixture
async def bed(virtual_redis: VirtualRedis, redis_url: str) -> AsyncIterator[Bed]:
    """An empty fleet."""
    assert redis_url == virtual_redis.url
    async with open_bed(virtual_redis) as bed:
        yield bed


class _Heard(logging.Handler):
    """Keeps lines: Celery configures the logs once a process, for whichever test is the first."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = record.msg if isinstance(record.msg, dict) else {"event": record.getMessage()}
        self.lines.append(" ".join(f"{name}={value}" for name, value in fields.items()))


@pytest.fixture
def said() -> Iterator[Callable[[], str]]:
    """What workers, beats and gateways have logged so far; `exc_info=True` is in the lines that have a traceback."""
    heard, loggers = _Heard(), [logging.getLogger(f"toolfleet_{room}") for room in ("registry", "tasks", "workers")]
    for logger in loggers:
        logger.addHandler(heard)
    yield lambda: "\n".join(heard.lines)
    for logger in loggers:
        logger.removeHandler(heard)
