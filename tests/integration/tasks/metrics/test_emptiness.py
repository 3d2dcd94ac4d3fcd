"""When a draining queue is taken for empty: where the broker says what workers hold, and where it does not."""

from toolfleet_tasks.operations.queue_overview import Emptiness


def test_two_readings_are_sure_where_the_broker_says_what_workers_hold() -> None:
    """One is not: a call may have been on its way."""
    emptiness = Emptiness(sees_held=True)

    assert [emptiness.is_over(at, is_empty=True, until=60) for at in (0.0, 0.3)] == [False, True]


def test_else_each_worker_must_have_had_the_time_to_say_what_it_runs() -> None:
    """A call that shows up meanwhile has the wait begin anew."""
    emptiness = Emptiness(sees_held=False)
    seen = [(0.0, True), (0.9, True), (1.2, False), (1.5, True), (3.9, True), (4.1, True)]

    assert [emptiness.is_over(at, is_empty=one, until=60) for at, one in seen] == [False] * 5 + [True]


def test_what_seems_empty_at_the_end_is_looked_at_a_little_longer() -> None:
    """Nobody is told that a queue is empty because time was over; one that is not is said to be so at once."""
    emptiness, busy = Emptiness(sees_held=False), Emptiness(sees_held=False)

    assert not emptiness.is_over(1.0, is_empty=True, until=1.0)
    assert emptiness.is_over(1.3, is_empty=False, until=1.0)
    assert busy.is_over(1.0, is_empty=False, until=1.0)
    assert Emptiness(sees_held=False).is_over(1.0, is_empty=True, until=1.0, waits=False)
