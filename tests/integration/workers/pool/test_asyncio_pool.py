"""The pool in a real worker process: many calls at once, limits, revocation, and what Celery asks of a pool."""

from collections.abc import Iterator

import pytest

from support.servers.silent_server import silent_server
from support.waiting import wait_until, wait_until_sync
from support.worker_process import Calls, WorkerProcess, exception_of
from support.workers.pool_worker import pool_calls, pool_worker

CONCURRENCY = 50


@pytest.fixture(scope="module")
def calls(redis_process_url: str) -> Iterator[Calls]:
    for calls in pool_calls(redis_process_url):
        calls.redis.flushall()
        yield calls


@pytest.fixture(scope="module")
def shared_worker(
    calls: Calls, redis_process_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    with pool_worker(redis_process_url, tmp_path_factory.mktemp("worker"), f"-c{CONCURRENCY}") as worker:
        yield worker


@pytest.fixture
def worker(shared_worker: WorkerProcess) -> Iterator[WorkerProcess]:
    before = len(shared_worker.said())
    yield shared_worker
    shared_worker.show(since=before)


def test_interleaved_calls_keep_their_own_request(calls: Calls, worker: WorkerProcess) -> None:
    """Sixty calls that pause in turns see their own id, in `current_task` and in `self`, before and after each pause."""
    ids = [calls.send("pool.echo", 4) for _ in range(60)]

    seen = [set(meta["result"]) for meta in calls.wait(*ids)]

    assert seen == [{call_id} for call_id in ids]


def test_context_variables_belong_to_a_call(calls: Calls, worker: WorkerProcess) -> None:
    """A call never sees what another has set, also when it takes over that one's slot, and keeps what it has set itself."""
    values = [f"value {number}" for number in range(3 * CONCURRENCY)]

    ends = calls.wait(*[calls.send("pool.mark", value) for value in values])

    assert [end["result"] for end in ends] == [[None, value] for value in values]


def test_no_more_calls_are_in_flight_than_allowed(calls: Calls, worker: WorkerProcess) -> None:
    """Of 150 calls at once never more than the 50 of `-c` run, and those do."""
    before = calls.pool()["completed"]
    filling = [calls.send("pool.gather", f"call {number}", CONCURRENCY, 0.3) for number in range(CONCURRENCY)]
    more = [calls.send(task, 0.3) for task in ("pool.doze", "pool.sleep") for _ in range(CONCURRENCY)]
    calls.wait(*filling, *more)

    wait_until_sync(lambda: calls.pool()["completed"] == before + 3 * CONCURRENCY, "all calls are counted")
    pool = calls.pool()
    assert pool["max-in-flight"] == pool["max-concurrency"] == CONCURRENCY
    assert pool["in-flight"] == 0
    assert calls.unacked() == 0


def test_the_soft_limit_is_raised_where_the_body_waits(calls: Calls, worker: WorkerProcess) -> None:
    """Uncaught, it is the call's failure, under Celery's own name."""
    (end,) = calls.wait(calls.send("pool.sleep", 60, soft_time_limit=0.2))

    assert (end["status"], exception_of(end)) == ("FAILURE", "SoftTimeLimitExceeded")
    assert "await asyncio.sleep(seconds)" in end["traceback"]


def test_a_body_may_catch_its_soft_limit(calls: Calls, worker: WorkerProcess) -> None:
    """It can still wait afterwards, with timeouts of its own, and what it returns is the result."""
    (end,) = calls.wait(calls.send("pool.careful", soft_time_limit=0.2))

    assert (end["status"], end["result"]) == ("SUCCESS", "cleaned up")


def test_a_child_that_swallows_its_cancellation_does_not_lift_the_soft_limit(
    calls: Calls, worker: WorkerProcess
) -> None:
    """The limit is raised in the body all the same."""
    (end,) = calls.wait(calls.send("pool.delegating", soft_time_limit=0.2))

    assert (end["status"], exception_of(end)) == ("FAILURE", "SoftTimeLimitExceeded")


async def test_the_soft_limit_ends_requests_of_a_task_group(calls: Calls, worker: WorkerProcess) -> None:
    """The group's children are cancelled, and the server sees their connections close."""
    async with silent_server() as server:
        call = calls.send("pool.group", server.url, soft_time_limit=3)
        await wait_until(lambda: server.waiting == 4, "all children have asked")
        await wait_until(lambda: server.gone == 4, "all children have hung up")
    (end,) = calls.wait(call)

    assert (end["status"], exception_of(end)) == ("FAILURE", "SoftTimeLimitExceeded")


def test_limits_do_not_outlive_their_call(calls: Calls, worker: WorkerProcess) -> None:
    """A call that has ended well stays so when its limits have passed."""
    call = calls.send("pool.sleep", 0.1, soft_time_limit=1, time_limit=1.2)
    calls.wait(call, calls.send("pool.sleep", 1.5))

    assert calls.status(call) == "SUCCESS"
    assert f"exceeded for pool.sleep[{call}]" not in worker.said()


async def test_the_hard_limit_ends_a_request(calls: Calls, worker: WorkerProcess) -> None:
    """The failure is stored, the message acked, and the request cancelled."""
    async with silent_server() as server:
        call = calls.send("pool.request", server.url, time_limit=2)
        await wait_until(lambda: server.gone == 1, "the request is cancelled")
    (end,) = calls.wait(call)

    assert (end["status"], exception_of(end)) == ("FAILURE", "TimeLimitExceeded")
    wait_until_sync(lambda: calls.unacked() == 0, "the message is acked")


def test_a_body_that_swallows_its_cancellation_is_left_behind(calls: Calls, worker: WorkerProcess) -> None:
    """After the hard limit the failure is stored and acked at once, and a little later the slot is free."""
    call = calls.send("pool.stubborn", time_limit=0.2)
    (end,) = calls.wait(call)

    assert (end["status"], exception_of(end)) == ("FAILURE", "TimeLimitExceeded")
    wait_until_sync(lambda: calls.pool()["in-flight"] == 0, "the slot is free")
    assert f"event='job_abandoned' call_id='{call}'" in worker.said()
    assert calls.unacked() == 0


async def test_revoking_a_running_call_cancels_its_request(calls: Calls, worker: WorkerProcess) -> None:
    """`revoke(terminate=True)`: REVOKED, acked, and the server sees the connection close."""
    async with silent_server() as server:
        ids = [calls.send("pool.request", server.url) for _ in range(5)]
        await wait_until(lambda: server.waiting == 5, "all requests are under way")
        calls.app.control.revoke(ids, terminate=True)
        await wait_until(lambda: server.gone == 5, "all requests are cancelled")

    assert {end["status"] for end in calls.wait(*ids)} == {"REVOKED"}
    wait_until_sync(lambda: calls.unacked() == 0, "the messages are acked")


def test_a_revoked_call_stays_revoked(calls: Calls, worker: WorkerProcess) -> None:
    """Whatever a body that swallows its cancellation comes to, it is not stored."""
    call = calls.send("pool.stubborn", time_limit=20)
    calls.wait_for({"STARTED"}, call)
    calls.app.control.revoke(call, terminate=True)
    wait_until_sync(lambda: calls.pool()["in-flight"] == 0, "the slot is free")

    assert calls.status(call) == "REVOKED"


def test_a_call_that_waits_for_a_slot_can_be_revoked(calls: Calls, worker: WorkerProcess) -> None:
    """It never starts, though the worker has it already."""
    running = [calls.send("pool.doze", 5) for _ in range(CONCURRENCY)]
    waiting = calls.send("pool.doze", 0)
    wait_until_sync(lambda: f"pool.doze[{waiting}] received" in worker.said(), "the worker has it")
    assert calls.status(waiting) == "PENDING"
    calls.app.control.revoke(waiting)
    ends = calls.wait(*running, waiting)

    assert [end["status"] for end in ends] == ["SUCCESS"] * CONCURRENCY + ["REVOKED"]


def test_a_failing_call_is_stored_with_its_exception(calls: Calls, worker: WorkerProcess) -> None:
    """As everywhere in Celery."""
    (end,) = calls.wait(calls.send("pool.fail"))

    assert (end["status"], exception_of(end)) == ("FAILURE", "ValueError")


@pytest.mark.parametrize(
    "task",
    [
        "pool.leave",  # SystemExit
        "pool.cancel_itself",  # CancelledError
    ],
)
def test_what_escapes_the_tracer_counts_as_a_lost_worker(task: str, calls: Calls, worker: WorkerProcess) -> None:
    """The call fails, its message is acked, and the worker goes on."""
    (end,) = calls.wait(calls.send(task))

    assert (end["status"], exception_of(end)) == ("FAILURE", "WorkerLostError")
    wait_until_sync(lambda: calls.unacked() == 0, "the message is acked")


def test_a_retry_comes_back_once(calls: Calls, worker: WorkerProcess) -> None:
    """With `max_retries=1` the call starts twice, then its own exception is the result."""
    call = calls.send("pool.retry")
    (end,) = calls.wait(call)

    assert (end["status"], exception_of(end)) == ("FAILURE", "ValueError")
    assert worker.said().count(f"pool.retry[{call}] received") == 2


def test_wrong_arguments_fail_the_call(calls: Calls, worker: WorkerProcess) -> None:
    """And nothing else."""
    (end,) = calls.wait(calls.send("pool.sleep", 1, 2, 3))

    assert (end["status"], exception_of(end)) == ("FAILURE", "TypeError")


def test_inspect_shows_running_calls(calls: Calls, worker: WorkerProcess) -> None:
    """`inspect active` lists them, `inspect stats` counts them."""
    ids = [calls.send("pool.sleep", 60) for _ in range(5)]
    calls.wait_for({"STARTED"}, *ids)

    assert {request["id"] for request in calls.ask("active")} == set(ids)
    assert calls.pool()["in-flight"] == 5
    calls.app.control.revoke(ids, terminate=True)
    calls.wait(*ids)


def test_the_pool_grows_and_shrinks(calls: Calls, worker: WorkerProcess) -> None:
    """`pool_grow` and `pool_shrink` change how many calls run at a time."""
    calls.app.control.pool_shrink(CONCURRENCY - 2)
    wait_until_sync(lambda: calls.pool()["max-concurrency"] == 2, "the pool has shrunk")
    ids = [calls.send("pool.sleep", 1.5) for _ in range(4)]
    calls.wait_for({"STARTED"}, *ids[:2])
    assert calls.pool()["in-flight"] == 2

    calls.app.control.pool_grow(CONCURRENCY - 2)
    wait_until_sync(lambda: calls.pool()["max-concurrency"] == CONCURRENCY, "the pool has grown")
    calls.wait(*ids)


def test_a_pool_restart_leaves_running_calls_alone(calls: Calls, worker: WorkerProcess) -> None:
    """`pool_restart` has nothing to restart in a pool of one process."""
    call = calls.send("pool.sleep", 0.5)
    calls.wait_for({"STARTED"}, call)
    calls.app.control.pool_restart()

    assert [end["status"] for end in calls.wait(call, calls.send("pool.sleep", 0))] == ["SUCCESS"] * 2


def listening(calls: Calls) -> set[str]:
    """Return the addresses of the connections that wait for messages, of whichever worker."""
    return {client["addr"] for client in calls.redis.client_list() if client["cmd"] == "brpop"}


def cut_off(worker: WorkerProcess, calls: Calls) -> None:
    """Close the worker's connections, and wait until it has new ones."""
    connected = "Connected to redis"
    # It says that it is connected before it listens; what it loses until then, it replaces without a word.
    wait_until_sync(lambda: listening(calls).intersection(worker.connections(calls.redis)), "it listens")
    before = worker.said().count(connected)
    assert worker.cut_connections(calls.redis)
    wait_until_sync(lambda: worker.said().count(connected) > before, "it has reconnected")


@pytest.mark.fleet
def test_a_lost_connection_loses_no_call(calls: Calls, worker: WorkerProcess) -> None:
    """Redis cuts the worker off, twice, while calls run: they end well, and so do later ones."""
    ids = [calls.send("pool.gather", f"cut off {number}", CONCURRENCY, 1) for number in range(CONCURRENCY)]
    calls.wait_for({"STARTED", "SUCCESS"}, *ids)  # none ends before all have begun
    cut_off(worker, calls)
    cut_off(worker, calls)

    later = [calls.send("pool.sleep", 0.1) for _ in range(CONCURRENCY)]
    assert {end["status"] for end in calls.wait(*ids, *later)} == {"SUCCESS"}
    wait_until_sync(lambda: calls.unacked() == 0, "all messages are acked")
    assert calls.pool()["max-in-flight"] == CONCURRENCY
    assert worker.said().count("toolfleet worker ready lane=slow\n") == 1
