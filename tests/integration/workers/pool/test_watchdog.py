"""The watchdog in a real worker: it names the code that blocks the loop, and is silent otherwise."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until_sync
from support.worker_process import Calls, WorkerProcess
from support.workers.pool_worker import pool_calls, pool_worker

STALL_SECONDS = 0.6
SHOWN = "(most recent call first)"


@pytest.fixture
def calls(redis_url: str) -> Iterator[Calls]:
    yield from pool_calls(redis_url)


@pytest.fixture
def worker(redis_url: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    with pool_worker(
        redis_url, tmp_path, "-c5", constants={"toolfleet_workers.pool.bootsteps._STALL_SECONDS": STALL_SECONDS}
    ) as worker:
        yield worker
        worker.show()


def test_code_that_keeps_the_interpreters_lock_is_shown_while_it_lasts(calls: Calls, worker: WorkerProcess) -> None:
    """At a signal, which needs no lock; and logged with its call as soon as Python goes on."""
    call_id = calls.send("pool.hold", 2 * STALL_SECONDS)
    wait_until_sync(lambda: SHOWN in worker.said(), "the stack is shown")
    wait_until_sync(lambda: "loop_recovered" in worker.said(), "the recovery is logged")

    shown, _, logged = worker.said().partition("loop_stalled")
    assert "in hold" in shown.partition(SHOWN)[2]
    line = logged.splitlines()[0]
    assert "keeps_interpreter=True" in line
    assert f"call_id={call_id!r}" in line
    calls.wait(call_id)


def test_a_blocking_call_is_reported_once(calls: Calls, worker: WorkerProcess) -> None:
    """With the stack that blocks, and again when the loop has recovered; a loop that waits is no stall."""
    calls.wait(calls.send("pool.sleep", 2 * STALL_SECONDS))
    assert "loop_" not in worker.said()

    calls.wait(calls.send("pool.block", 2 * STALL_SECONDS))
    wait_until_sync(lambda: "loop_recovered" in worker.said(), "the recovery is logged")
    assert worker.said().count("loop_stalled") == 1
    assert "time.sleep(seconds)" in worker.said()

    calls.wait(calls.send("pool.block", 2 * STALL_SECONDS))
    wait_until_sync(lambda: worker.said().count("loop_recovered") == 2, "the next stall is another one")
    assert worker.said().count("loop_stalled") == 2


def is_to_show_its_stack(worker: WorkerProcess) -> bool:
    """Whether the signal for that has come: the kernel keeps it for a process that is stopped."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{worker.process.pid}/status").read_text().splitlines())
    return bool(int(fields["ShdPnd"], 16) >> (signal.SIGALRM - 1) & 1)


def test_a_worker_that_was_stopped_goes_on(calls: Calls, worker: WorkerProcess) -> None:
    """Again and again, for longer than a stall, while it is busy: what shows the stack then comes to no harm."""
    for _ in range(2):
        busy = [calls.send("pool.sleep", 0.01) for _ in range(50)]
        os.kill(worker.process.pid, signal.SIGSTOP)
        wait_until_sync(lambda: is_to_show_its_stack(worker), "it has stood still for longer than a stall")
        os.kill(worker.process.pid, signal.SIGCONT)
        for call_id in busy:
            calls.wait(call_id)

    assert worker.process.poll() is None
