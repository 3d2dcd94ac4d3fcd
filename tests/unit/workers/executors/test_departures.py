"""Which processes of modules have left for good."""

import pytest

from support.clocks import HandClock
from toolfleet_registry.system import machine_clock
from toolfleet_workers.executors import address_book
from toolfleet_workers.executors.address_book import ABSENT_SECONDS, Departures

A, B = ("owls", "a"), ("owls", "b")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock(100)
    monkeypatch.setattr(machine_clock, "monotonic", clock)
    return clock


def test_one_is_gone_that_has_not_been_there_for_a_while(clock: HandClock) -> None:
    """From when it was seen to leave, not from the first question."""
    left = Departures()
    left.serve([B], before=[A, B])
    clock.now += ABSENT_SECONDS
    assert left.is_gone(*A)


def test_one_that_nobody_has_seen_leaves_with_the_first_question(clock: HandClock) -> None:
    """A worker that has just begun may not have heard of it yet."""
    left = Departures()
    assert not left.is_gone(*A)
    clock.now += ABSENT_SECONDS - 0.1
    assert not left.is_gone(*A)
    clock.now += 0.1
    assert left.is_gone(*A)


def test_one_that_comes_back_has_never_left(clock: HandClock) -> None:
    """It may leave again, later."""
    left = Departures()
    left.serve([], before=[A])
    clock.now += ABSENT_SECONDS
    left.serve([A], before=[])
    left.serve([], before=[A])
    assert not left.is_gone(*A)


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch, clock: HandClock) -> None:
    """The one before is found anew, a while later."""
    monkeypatch.setattr(address_book, "_MOST_DEPARTURES", 1)
    left = Departures()
    left.serve([], before=[A])
    left.serve([], before=[B])
    clock.now += ABSENT_SECONDS
    assert left.is_gone(*B)
    assert not left.is_gone(*A)
