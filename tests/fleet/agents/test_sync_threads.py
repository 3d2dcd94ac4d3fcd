"""`ToolFleet.sync()` under many threads: a worker dies, the fleet is left, and the program ends while calls run."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_tasks.client.fleet import SyncToolFleet
from toolfleet_tasks.client.sync_face import _LoopThread

THREADS, CALLS, ROUNDS = 20, 50, 2
LEASE_SECONDS = 4
ENDED_SECONDS = 10

PROGRAM = """
import sys, threading, time
from toolfleet import Caller, ToolCall, ToolFleet

caller = Caller(user_id="bob", permission="owner", allowed_modules="*")
nap = ToolCall(tool_name="owls.nap", arguments={"seconds": 90})

def call(fleet):
    fleet.call(nap, caller, timeout=100)

how = sys.argv[1]
fleet = ToolFleet.sync()
fleet.__enter__()
print(fleet.call(ToolCall(tool_name="owls.echo", arguments={}), caller).success, flush=True)
for _ in range(5):
    threading.Thread(target=call, args=[fleet], daemon=True).start()
time.sleep(1)
if how == "left":
    fleet.__exit__(None, None, None)
if how == "raises":
    raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """With a module of its own: calls that run and wait when an agent is left would meet other tests' ones."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url, serve(make_module()) as owls:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker
        worker.process.kill()


def echo(number: int) -> ToolCall:
    return ToolCall(tool_name="owls.echo", arguments={"number": number})


def calls_of(fleet: SyncToolFleet, owner: Caller, thread: int) -> list[ToolResult]:
    return [fleet.call(echo(CALLS * thread + number), owner, timeout=60) for number in range(CALLS)]


@pytest.mark.slow
def test_each_of_many_threads_gets_its_own_results_though_a_worker_dies(
    owls: ModuleServer, owner: Caller, tmp_path: Path
) -> None:
    """20 threads make 50 calls each, and one of two workers is killed; what that one had is read again."""
    (tmp_path / "logs").mkdir()
    with redis_server(tmp_path) as url:
        bed = TestBed(url, (owls,), tmp_path / "logs", {"visibility_timeout": LEASE_SECONDS})
        with (
            bed.worker() as first,
            bed.worker(),
            ToolFleet.sync(settings=bed.settings) as fleet,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            asked = [threads.submit(calls_of, fleet, owner, thread) for thread in range(THREADS)]
            wait_until_sync(lambda: len(owls.requests) > THREADS, "calls run")
            first.process.kill()
            found = [future.result(timeout=5 * PATIENCE_SECONDS) for future in asked]

    for thread, results in enumerate(found):
        assert [result.result for result in results] == [{"number": CALLS * thread + n} for n in range(CALLS)]


@pytest.mark.usefixtures("worker")
def test_leaving_ends_the_calls_of_all_threads(bed: TestBed, owner: Caller) -> None:
    """Each returns or raises at once, also one that is made at that very moment."""
    (owls,) = bed.modules
    refused = list[str]()

    def work(fleet: SyncToolFleet, call: ToolCall) -> None:
        try:
            while True:
                fleet.call(call, owner, timeout=60)
        except RuntimeError as exc:
            refused.append(str(exc))

    naps = ToolCall(tool_name="owls.nap", arguments={"seconds": 30})
    for _ in range(ROUNDS):
        owls.forget()  # those of the round before, which are being taken back
        with ToolFleet.sync(settings=bed.settings) as fleet:
            made = [partial(work, fleet, naps if number % 2 else echo(number)) for number in range(THREADS)]
            threads = [threading.Thread(target=one, daemon=True) for one in made]
            for thread in threads:
                thread.start()
            wait_until_sync(lambda: owls.running >= THREADS // 2, "calls run")
        give_up_at = time.monotonic() + ENDED_SECONDS
        for thread in threads:
            thread.join(max(give_up_at - time.monotonic(), 0))
        assert [thread.is_alive() for thread in threads] == [False] * THREADS
    assert len(refused) == ROUNDS * THREADS
    assert all("This fleet is not open" in reason for reason in refused)


async def never_ends() -> None:
    await asyncio.Event().wait()


async def cannot_be_cancelled() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@pytest.mark.parametrize("work", [never_ends, cannot_be_cancelled])
def test_what_is_begun_at_the_last_moment_ends_with_the_loop(
    work: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it in another thread would wait for ever."""
    monkeypatch.setattr("toolfleet_tasks.client.sync_face._STOP_SECONDS", 0.1)
    thread = _LoopThread()
    thread.start()
    future = thread.begin(work())
    thread.stop()

    assert future.cancelled()


def test_what_ends_in_the_last_turn_of_the_loop_has_its_result() -> None:
    """The loop has no turn left in which it would tell the thread that waits."""
    thread = _LoopThread()

    async def ends_the_loop_as_well() -> str:
        thread.loop.stop()
        return "done"

    thread.start()
    future = thread.begin(ends_the_loop_as_well())
    thread.join(PATIENCE_SECONDS)
    thread.stop()

    assert future.result(timeout=0) == "done"


@pytest.mark.usefixtures("worker")
@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("falls off", 0), ("left", 0), ("raises", 3)])
def test_a_program_ends_though_its_threads_call(bed: TestBed, how: str, code: int) -> None:
    """Before they have ended, by its own code, and without a word of what was interrupted."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, how],
        env=environment_of(bed.settings),
        cwd=bed.folder,
        capture_output=True,
        timeout=2 * PATIENCE_SECONDS,  # less than half of what the calls take
        check=False,
        text=True,
    )

    assert (done.returncode, done.stdout.splitlines()) == (code, ["True"]), done.stderr
