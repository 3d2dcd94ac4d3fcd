"""The watchdog in a real worker: it names the code that blocks the loop, and is silent otherwise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pool_worker import pool_calls, pool_worker
from support.waiting import wait_until_sync
from support.worker_process import Calls, WorkerProcess

STALL_SECONDS = 0.25


@pytest.fixture
def calls(redis_url: str) -> Iterator[Calls]:
    yield from pool_calls(redis_url)


@pytest.fixture
def worker(redis_url: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    with pool_worker(redis_url, tmp_path, "-c5", env={"TOOLFLEET_LOOP_STALL_SECONDS": str(STALL_SECONDS)}) as worker:
        yield worker
        worker.show()


def test_a_blocking_call_is_reported_once(calls: Calls, worker: WorkerProcess) -> None:
    """With the stack that blocks, and again when the loop has recovered; a loop that waits is no stall."""
    calls.wait(calls.send("pool.sleep", 4 * STALL_SECONDS))
    assert "loop_" not in worker.said()

    calls.wait(calls.send("pool.block", 4 * STALL_SECONDS))
    wait_until_sync(lambda: "loop_recovered" in worker.said(), "the recovery is logged")
    assert worker.said().count("loop_stalled") == 1
    assert "time.sleep(seconds)" in worker.said()

    calls.wait(calls.send("pool.block", 2 * STALL_SECONDS))
    wait_until_sync(lambda: worker.said().count("loop_recovered") == 2, "the next stall is another one")
    assert worker.said().count("loop_stalled") == 2
