"""How many workers a lane has, by what it has wanted."""

from hypothesis import given
from hypothesis import strategies as st

from toolfleet_cli.scaling import ScaleBounds, ScaleRule
from toolfleet_tasks.metrics.fleet_facts import FleetFacts, QueueFacts
from toolfleet_tasks.metrics.lane_load import LaneLoad, lane_load
from toolfleet_tasks.queue_states.states import QueueState


def test_it_grows_at_once_and_shrinks_when_fewer_have_been_enough() -> None:
    """To the most that was wanted within that time; a moment without calls ends nobody."""
    rule = ScaleRule(ScaleBounds(0, 10, 60))
    wanted = [(0, 1), (1, 5), (2, 0), (40, 3), (61, 0), (62, 0), (101, 0), (161, 0)]

    assert [rule.target(count, now=now) for now, count in wanted] == [1, 5, 5, 5, 5, 3, 0, 0]


def test_it_keeps_its_bounds() -> None:
    rule = ScaleRule(ScaleBounds(1, 3, 0))

    assert [rule.target(count, now=now) for now, count in enumerate([0, 100, 2, 0])] == [1, 3, 2, 1]


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 20)), min_size=1, max_size=30))
def test_it_is_the_most_that_was_wanted_of_late(steps: list[tuple[float, int]]) -> None:
    rule, now, seen = ScaleRule(ScaleBounds(2, 15, 20)), 0.0, list[tuple[float, int]]()
    for pause, wanted in steps:
        now += pause
        seen.append((now, wanted))
        recent = max(count for at, count in seen if now - at <= 20)
        assert rule.target(wanted, now=now) == max(2, min(recent, 15))


def test_a_lane_wants_a_slot_for_each_call() -> None:
    """And more workers, where some slots are to stay free."""
    load = LaneLoad("fast", running=14, waiting=2, workers=2, slots=8, oldest_seconds=0.1)

    assert (load.wanted, load.wanted_at(0.75), load.wanted_at(0.5)) == (2, 3, 4)


def test_what_waits_in_a_paused_queue_wants_no_worker() -> None:
    """It is counted by itself, and its age is nobody's trouble; what runs there is."""
    paused = QueueState(state="paused", since=1.0)
    facts = FleetFacts(
        queues=(
            QueueFacts("tools.owls", "fast", 50, 900.0, 2, 1, paused),
            QueueFacts("tools.larks", "fast", 3, 0.5, 1, 1, QueueState(state="draining", since=1.0)),
        )
    )
    load = lane_load(facts, "fast", usual_slots=4)

    assert load is not None
    assert (load.waiting, load.running, load.paused, load.oldest_seconds, load.wanted) == (3, 3, 50, 0.5, 2)


def test_while_the_broker_is_away_nobody_knows_what_a_lane_wants() -> None:
    """What runs is known and what waits is not: whoever scales keeps what there is."""
    facts = FleetFacts(
        queues=(QueueFacts("tools.owls", "fast", None, None, 3, 1),), broker_error="The broker does not answer."
    )

    assert lane_load(facts, "fast", usual_slots=4) is None
