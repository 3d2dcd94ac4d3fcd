"""The parts of a call's time, computed of its trail and its line: they follow one another, and none is longer than what is known."""

import itertools
from dataclasses import replace

import pytest

from toolfleet_tasks.operations.call_story import (
    RECORD_FIELDS,
    LineTimes,
    StorySpan,
    parts_of,
    spans_of,
    story_of,
    waited_for_people,
)

PLAIN = LineTimes(ended=2_000.0, queued=300.0, ran=500.0, worker="w1", outcome="success", attempts=1)
"""Published at 1,200, begun at 1,500, ended at 2,000."""


def drawn(spans: list[StorySpan]) -> list[tuple[str, float, float | None]]:
    return [(span.phase, span.begins, span.ends) for span in spans]


def test_a_call_that_ran_once() -> None:
    """It waited, was claimed, ran; its module had it; its result was stored."""
    times = replace(PLAIN, claimed=1_490.0, own=(10.0, 20.0), stored=2_003.0)

    assert drawn(spans_of([], times)) == [
        ("queued", 1_200, 1_490),
        ("claimed", 1_490, 1_500),
        ("attempt", 1_500, 2_000),
        ("module", 1_510, 1_980),
        ("stored", 2_000, 2_003),
    ]


def test_what_is_not_known_is_not_drawn() -> None:
    """A line of an earlier version, whose claim and storing nobody knows."""
    assert [span.phase for span in spans_of([], PLAIN)] == ["queued", "attempt", "module"]
    assert spans_of([], LineTimes()) == []
    assert drawn(spans_of([], LineTimes(ended=2_000.0, queued=300.0))) == [("queued", 1_700, 2_000)]


def test_a_retried_call() -> None:
    """Each attempt with its worker, and the wait between them."""
    parts = parts_of("attempt 1 1245 100 1350 failed w0 owl-1;attempt 2 1495 500 2000 success w1 owl-2;")
    spans = spans_of(parts, replace(PLAIN, attempts=2))

    assert drawn(spans) == [
        ("queued", 1_200, 1_245),
        ("claimed", 1_245, 1_250),
        ("attempt", 1_250, 1_350),
        ("retry", 1_350, 1_495),
        ("claimed", 1_495, 1_500),
        ("attempt", 1_500, 2_000),
        ("module", 1_500, 2_000),
    ]
    assert [(span.attempt, span.worker, span.replica, span.outcome) for span in spans if span.phase == "attempt"] == [
        (1, "w0", "owl-1", "failed"),
        (2, "w1", "owl-2", "success"),
    ]


def test_the_line_knows_best_when_the_last_attempt_began() -> None:
    """The ledger hears of its end only when its module has been asked once more how it ended."""
    parts = parts_of("attempt 1 1245 100 1350 failed w0 -;attempt 2 1490 4 2000 unknown w1 -;")
    spans = spans_of(parts, replace(PLAIN, attempts=2, outcome="failed"))

    assert drawn(spans)[-2:] == [("attempt", 1_500, 2_000), ("module", 1_500, 2_000)]
    assert spans[-2].outcome == "unknown"


def test_a_reclaimed_call() -> None:
    """The lost worker's attempt ends when it was last heard of; then nobody had the call until its lease had run out."""
    parts = parts_of("lost 1 1250 1300 1480 w0 -;attempt 2 1490 500 2000 success w1 -;")
    spans = spans_of(parts, replace(PLAIN, attempts=2))

    assert [span.phase for span in spans] == ["queued", "lost", "reclaim", "claimed", "attempt", "module"]
    assert drawn(spans)[1:3] == [("lost", 1_250, 1_300), ("reclaim", 1_300, 1_490)]
    assert spans[1].worker == "w0"


def test_an_accepted_call() -> None:
    """Its request, and then its module goes on until it has said how it ended; as long as it has not, that goes on."""
    parts = parts_of("accepted 1 1240 50 1300 w0 -;")
    ended = spans_of(
        [*parts, *parts_of("attempt 1 1990 750 2000 success w1 -;")],
        replace(PLAIN, ran=750.0, queued=50.0),
    )

    assert [span.phase for span in ended] == ["queued", "claimed", "attempt", "accepted"]
    assert drawn(ended)[-1] == ("accepted", 1_300, 2_000)
    assert drawn(spans_of(parts, LineTimes(), waits_for="accepted"))[-1] == ("accepted", 1_300, None)
    assert drawn(spans_of(parts, LineTimes(claimed=1_400.0, worker="w1"), running=1))[-1] == ("accepted", 1_300, None)


def test_a_call_that_waited_for_people() -> None:
    """From when they were asked until they approved; then it was published, and waited in its queue."""
    spans = spans_of(parts_of("approved 2 1190;"), PLAIN, requested_at=400.0)

    assert drawn(spans)[:3] == [("approval", 400, 1_190), ("queued", 1_190, 1_500), ("attempt", 1_500, 2_000)]
    assert drawn(spans_of([], LineTimes(), waits_for="approval", requested_at=400.0)) == [("approval", 400, None)]


@pytest.mark.parametrize(
    ("trail", "token", "waited"),
    [
        ("approved 2 1190;", None, True),
        (None, "approval", True),
        (None, "asked", False),
        ("lost 1 1 1 1 w -;", None, False),
    ],
)
def test_a_call_waits_for_people_or_does_not(trail: str | None, token: str | None, waited: bool) -> None:
    """By its record while it waits, and by its trail afterwards."""
    record = {"trail": trail, "token": token}

    assert waited_for_people([], [record.get(name) for name in RECORD_FIELDS]) == waited


def test_a_running_call() -> None:
    """Its attempt goes on, at the worker that its token names."""
    (span,) = spans_of([], LineTimes(claimed=1_400.0, worker="w1"), running=1)

    assert (span.phase, span.begins, span.ends, span.attempt, span.worker) == ("attempt", 1_400, None, 1, "w1")


@pytest.mark.parametrize("shift", [-100_000, -400, 0, 400, 100_000])
def test_clocks_that_differ_draw_nothing_backwards(shift: int) -> None:
    """The trail's moments are another machine's: whatever they say, no part ends before it begins."""
    trail = f"attempt 1 {1245 + shift} 100 {1350 + shift} failed w0 -;lost 2 {1360 + shift} {1300 - shift} {1480} w0 -;"
    spans = spans_of(parts_of(trail), replace(PLAIN, claimed=1_000.0 + shift, stored=1_000.0))

    assert all(span.ends is None or span.ends >= span.begins for span in spans)
    assert spans


@pytest.mark.parametrize("queued", [0.0, 150.0, 600.0])
def test_a_call_has_waited_whatever_its_agents_clock_says(queued: float) -> None:
    """Of a call that was published after it began, by a clock that is ahead, the wait is drawn as well, and takes no time."""
    parts = parts_of("lost 1 1250 1300 1480 w0 -;attempt 2 1490 500 2000 success w1 -;")
    spans = spans_of(parts, replace(PLAIN, attempts=2, queued=queued))

    assert [span.phase for span in spans] == ["queued", "lost", "reclaim", "claimed", "attempt", "module"]
    assert drawn(spans)[0] == ("queued", min(1_500 - queued, 1_250), 1_250)


def test_a_story_takes_the_lines_trail_before_the_records() -> None:
    """The record is gone after an hour; its line stays. Of what somebody has written there nothing breaks."""
    line = {"call_id": "c", "ts": 2.0, "queued_ms": 300, "duration_ms": 500, "attempts": 2, "outcome": "success"}
    line |= {"trail": "attempt 1 1245 100 1350 failed w0 -;attempt 2 1495 500 2000 success w1 -;", "polls": 3}
    story = story_of("c", [line], [None] * len(RECORD_FIELDS), stored_at=2_001.0)
    odd = {"ts": True, "trail": 7, "own_ms": ["x", 1], "polls": "many", "queued_ms": [], "worker": 3}

    assert story is not None
    assert (len(story.spans), story.polls, story.spans[-1].phase) == (8, 3, "stored")
    for name, value in itertools.product(odd, (odd["ts"], [], {}, "x", None, -1)):
        assert story_of("c", [{**line, name: value}], [b"\xff"] * len(RECORD_FIELDS)) is not None
