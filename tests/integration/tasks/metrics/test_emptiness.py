"""When a draining queue is taken for empty: where the broker says what workers hold, and where it does not."""

from toolfleet import QueueOverview
from toolfleet_tasks.metrics.queue_overview import Emptiness


def queue(waiting: int = 0, held: int = 0) -> QueueOverview:
    return QueueOverview(
        queue="tools.owls",
        module="owls",
        lane="fast",
        state="draining",
        since=1.0,
        by="ada",
        reason="",
        is_lanes=False,
        waiting=waiting,
        held=held,
        oldest_seconds=None,
        workers=1,
    )


def test_two_readings_are_sure_where_the_broker_says_what_workers_hold() -> None:
    """One is not: a call may have been on its way."""
    emptiness = Emptiness(sees_held=True)

    assert [emptiness.is_over([queue()], at, until=60) for at in (0.0, 0.3)] == [False, True]


def test_else_each_worker_must_have_had_the_time_to_say_what_it_runs() -> None:
    """A call that shows up meanwhile has the wait begin anew."""
    emptiness = Emptiness(sees_held=False)
    seen = [(0.0, queue()), (0.9, queue()), (1.2, queue(held=1)), (1.5, queue()), (3.9, queue()), (4.1, queue())]

    assert [emptiness.is_over([one], at, until=60) for at, one in seen] == [False] * 5 + [True]


def test_what_seems_empty_at_the_end_is_looked_at_a_little_longer() -> None:
    """Nobody is told that a queue is empty because time was over; one that is not is said to be so at once."""
    emptiness, busy = Emptiness(sees_held=False), Emptiness(sees_held=False)

    assert not emptiness.is_over([queue()], 1.0, until=1.0)
    assert emptiness.is_over([queue(waiting=1)], 1.3, until=1.0)
    assert busy.is_over([queue(held=2)], 1.0, until=1.0)
    assert Emptiness(sees_held=False).is_over([queue()], 1.0, until=1.0, waits=False)
