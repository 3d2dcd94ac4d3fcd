"""How many calls one worker process holds, fixed and autoscaled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import Calls
from support.workers.fast_worker import fast_fleet
from support.workers.pool_worker import pool_calls, pool_worker


@pytest.fixture
def calls(redis_url: str) -> Iterator[Calls]:
    yield from pool_calls(redis_url)


@pytest.mark.slow
def test_a_thousand_calls_are_in_flight_in_one_process(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """Each waits until all are there, and then for half a second: all of them return."""
    with pool_worker(redis_url, tmp_path, "-c1000", "--loglevel=WARNING") as worker:
        ids = [calls.send("pool.gather", str(number), 1000, 0.5) for number in range(1000)]
        ends = calls.wait(*ids, seconds=2 * PATIENCE_SECONDS)
        pool = calls.pool()
        worker.show()

    assert [end["result"] for end in ends] == [1000] * 1000
    assert pool["max-in-flight"] == 1000
    assert calls.unacked() == 0


def test_autoscale_follows_the_calls(calls: Calls, redis_url: str, tmp_path: Path) -> None:
    """From 2 slots it grows to as many as there are calls, but not past its maximum."""
    with pool_worker(redis_url, tmp_path, "--autoscale=20,2") as worker:
        ids = [calls.send("pool.sleep", 3) for _ in range(10)]
        calls.wait_for({"STARTED"}, *ids)
        assert calls.pool()["in-flight"] == 10

        ids += [calls.send("pool.sleep", 0.5) for _ in range(30)]
        assert {end["status"] for end in calls.wait(*ids)} == {"SUCCESS"}
        wait_until_sync(lambda: calls.pool()["in-flight"] == 0, "all slots are free")
        pool = calls.pool()
        worker.show()

    assert pool["max-in-flight"] == pool["max-concurrency"] == 20


def test_a_call_that_was_put_off_shares_no_slot(tmp_path: Path) -> None:
    """Of one slot: neither with what runs when its time comes, nor with what is taken from the queue as that ends; all of them run."""
    with fast_fleet(tmp_path, slots=1) as fleet:
        running = fleet.hold(1, 0.5)
        late = [fleet.calls.send("pool.sleep", 0.1, countdown=0.2) for _ in range(2)]
        fleet.let_go()
        more = [fleet.calls.send("pool.sleep", 0.1) for _ in range(5)]
        fleet.calls.wait(*running, *late, *more)

        assert fleet.calls.pool()["max-in-flight"] == 1
