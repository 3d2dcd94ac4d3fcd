"""The pool in a real worker whose Redis is frozen, killed or full just when calls end."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import exception_of
from support.workers.fast_worker import PATIENCE_VARIABLE, FastFleet, fast_fleet

CALLS = 100
AWAY_SECONDS = 2.2
"""For a call that shows by its end that the worker's loop goes on: others of a second have ended before, and had it stood still from
then on, the watchdog would have noticed.
"""
_PATIENCE_SECONDS = 1  # instead of ten, three times over


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FastFleet]:
    with fast_fleet(tmp_path) as fleet:
        yield fleet


@pytest.fixture
def hasty_fleet(tmp_path: Path) -> Iterator[FastFleet]:
    """Its worker's own connections give up sooner."""
    with fast_fleet(tmp_path, {PATIENCE_VARIABLE: str(_PATIENCE_SECONDS)}) as fleet:
        yield fleet


def statuses(fleet: FastFleet, ids: list[str]) -> set[str]:
    return {str(meta["status"]) for meta in fleet.calls.wait(*ids)}


def test_calls_that_end_while_redis_is_frozen(fleet: FastFleet) -> None:
    """All results are stored when it answers again, each message is acked, and the loop has never stood still."""
    ids = fleet.hold(CALLS, 1) + fleet.hold(1, AWAY_SECONDS)
    with fleet.redis.frozen():
        fleet.let_go()
        fleet.wait_until_ended(CALLS + 1)

    assert statuses(fleet, ids) == {"SUCCESS"}
    fleet.wait_until_settled()


def test_calls_that_end_while_redis_restarts(fleet: FastFleet) -> None:
    """Nothing is lost, and nothing runs twice."""
    ids = fleet.hold(CALLS, 0)
    with fleet.redis.restarted():
        fleet.let_go()
        fleet.wait_until_ended(CALLS)
        wait_until_sync(lambda: "redis_line_away" in fleet.worker.said(), "the worker has noticed")

    assert statuses(fleet, ids) == {"SUCCESS"}
    fleet.wait_until_settled()
    later = [fleet.calls.send("pool.deliveries") for _ in range(CALLS)]
    assert [meta["result"] for meta in fleet.calls.wait(*later)] == [False] * CALLS


def test_messages_are_acked_when_the_results_stand(fleet: FastFleet) -> None:
    """A full Redis takes acks and no results: until there is room, every message is kept."""
    ids = fleet.hold(CALLS, 1) + fleet.hold(1, AWAY_SECONDS)
    with fleet.redis.full():
        fleet.let_go()
        fleet.wait_until_ended(CALLS + 1)
        wait_until_sync(lambda: fleet.redis.refusals() > CALLS, "Redis has refused their results")
        assert {fleet.calls.status(call_id) for call_id in ids} == {"STARTED"}
        assert fleet.calls.unacked() == CALLS + 1

    assert statuses(fleet, ids) == {"SUCCESS"}
    fleet.wait_until_settled()


def test_a_hard_limit_while_redis_is_frozen(fleet: FastFleet) -> None:
    """The failures are stored and acked when it answers again; nothing stands still for them."""
    fleet.hold(1, AWAY_SECONDS)
    ids = fleet.start(CALLS, "pool.sleep", 60, time_limit=1)
    (stubborn,) = fleet.start(1, "pool.stubborn", time_limit=1)
    with fleet.redis.frozen():
        fleet.let_go()
        fleet.wait_until_ended(1)

    ends = fleet.calls.wait(*ids, stubborn)
    assert {(end["status"], exception_of(end)) for end in ends} == {("FAILURE", "TimeLimitExceeded")}
    fleet.wait_until_settled()
    # The stubborn one is left behind a grace period after its failure is stored: no sooner does it free its slot.
    wait_until_sync(lambda: fleet.calls.pool()["in-flight"] == 0, "every slot is free")


def test_a_call_that_has_ended_in_time_is_a_success(fleet: FastFleet) -> None:
    """Also if its hard limit passes while its result waits for Redis."""
    fleet.hold(1, AWAY_SECONDS)
    ids = fleet.start(10, "pool.sleep", 0.5, time_limit=1.5)
    with fleet.redis.frozen():
        fleet.let_go()
        fleet.wait_until_ended(1)

    assert statuses(fleet, ids) == {"SUCCESS"}
    fleet.wait_until_settled()


@pytest.mark.slow
def test_a_worker_ends_although_redis_does_not_answer(hasty_fleet: FastFleet) -> None:
    """SIGQUIT while results wait: it gives up within a bounded time, and the calls are delivered again."""
    ids = hasty_fleet.hold(CALLS, 0)
    with hasty_fleet.redis.frozen():
        hasty_fleet.let_go()
        hasty_fleet.wait_until_ended(CALLS)
        hasty_fleet.worker.send_signal(signal.SIGQUIT)
        hasty_fleet.worker.wait(seconds=3 * PATIENCE_SECONDS)

    assert {hasty_fleet.calls.status(call_id) for call_id in ids} <= {"STARTED", "SUCCESS"}


def test_a_result_that_redis_refuses_ends_its_call(fleet: FastFleet) -> None:
    """Too large for it: the call fails with a sentence that says so, its message is acked, and the others are stored."""
    fleet.redis.look.config_set("proto-max-bulk-len", 2**20)
    big = fleet.calls.send("pool.swell", 2 * 2**20)
    ids = [fleet.calls.send("pool.sleep", 0.1) for _ in range(CALLS)]
    (end,) = fleet.calls.wait(big, seconds=2 * PATIENCE_SECONDS)

    assert (end["status"], exception_of(end)) == ("FAILURE", "ResultRefused")
    assert "Redis refuses to store the result" in str(end["result"]["exc_message"])
    assert statuses(fleet, ids) == {"SUCCESS"}
    fleet.wait_until_settled()


def test_what_the_tracer_does_not_catch_is_stored(fleet: FastFleet) -> None:
    """`SystemExit` in a body counts as a lost worker, here as well."""
    ends = fleet.calls.wait(fleet.calls.send("pool.leave"), fleet.calls.send("pool.fail"))

    assert [exception_of(end) for end in ends] == ["WorkerLostError", "ValueError"]
    fleet.wait_until_settled()
