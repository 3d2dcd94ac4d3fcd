"""Canaries through a fleet: each queue is answered for, and nobody's call, limit or audit is touched."""

import signal
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed, own_bed
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.programs.closed_port import closed_port
from support.worker_process import WorkerProcess
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.operations.worker_probes import ask_workers, fly
from toolfleet_tasks.queues import CONTROL

_SECONDS = 20.0


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    with serve(make_module()) as module:
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A Redis of their own: other tests' calls write lines of the audit, and their killed workers do not answer."""
    with own_bed(owls, tmp_path_factory.mktemp("fleet")) as bed:
        yield bed


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


async def test_a_canary_is_answered_by_a_worker_that_asks_the_module(
    bed: TestBed, worker: WorkerProcess, owls: ModuleServer
) -> None:
    """Its stages are timed; no tool runs, no line of the audit is written, and all that is left expires."""
    keys = Keys()
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        audited, seen = await redis.xlen(keys.audit), len(owls.requests)
        control, module = await fly(bed.settings, {"tools.owls": "owls", CONTROL: ""}, seconds=_SECONDS)

        assert (control.queue, control.fate, module.queue, module.fate) == (
            CONTROL,
            "answered",
            "tools.owls",
            "answered",
        )
        assert module.answer is not None
        assert control.answer is not None
        assert module.answer.worker.endswith(f":{worker.process.pid}")
        assert (module.answer.health, control.answer.health) == ("well", None)
        assert 0 <= (module.queued or 0) <= (module.total or 0) < _SECONDS
        assert len(owls.requests) == seen
        assert await redis.xlen(keys.audit) == audited
        left = [key async for key in redis.scan_iter("*canary*")]
        assert left
        assert [key for key in left if await redis.ttl(key) == -1] == []  # one that has just expired has -2


async def test_a_worker_finds_that_a_module_is_away(bed: TestBed) -> None:
    settings = bed.settings.model_copy(update={"module_services": {"larks": f"http://127.0.0.1:{closed_port()}"}})
    with bed.worker(module_services=settings.module_services):
        (flight,) = await fly(settings, {"tools.larks": "larks"}, seconds=_SECONDS)

    assert flight.answer is not None
    assert flight.answer.health == "away"


async def test_nobody_takes_a_canary_out_of_a_queue_without_a_worker(bed: TestBed) -> None:
    """It is taken out again, and a worker that comes later finds nothing."""
    (flight,) = await fly(bed.settings, {"tools.finches": "finches"}, seconds=0.2)

    assert (flight.fate, flight.answer) == ("waiting", None)
    async with Redis.from_url(bed.redis_url) as redis:
        assert await redis.exists("tools.finches") == 0


async def test_a_worker_that_is_frozen_says_that_it_lives_and_does_not_answer(bed: TestBed) -> None:
    """What it noted last counts for some seconds; the other workers answer."""
    with bed.worker() as well, bed.worker() as frozen:
        frozen.send_signal(signal.SIGSTOP)
        try:
            found = await ask_workers(bed.settings, seconds=5)
        finally:
            frozen.send_signal(signal.SIGCONT)

    assert [name.rpartition(":")[2] for name in found.deaf] == [str(frozen.process.pid)]
    assert str(well.process.pid) in {name.rpartition(":")[2] for name in found.answering}
    assert (found.listening or 0) >= 2
