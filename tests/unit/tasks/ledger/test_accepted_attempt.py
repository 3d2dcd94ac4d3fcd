"""When a call comes back that its module goes on with."""

import pytest

from toolfleet_registry.contracts.attempts import Acceptance, StatusMissing, StillAtWork
from toolfleet_tasks.ledger.claims import AcceptedAttempt

SILENCE = StatusMissing(is_silent=True)


def accepted(seconds: float | None = None) -> AcceptedAttempt:
    return AcceptedAttempt.of(Acceptance("egg", seconds), begun_at=1.0)


def test_it_comes_back_later_each_time() -> None:
    """From half a second on, up to half a minute; a module that says when is believed each time."""
    waits, one = list[float](), accepted()
    for _ in range(14):
        waits.append(one.wait_seconds)
        one = one.after(StillAtWork() if len(waits) % 2 else SILENCE)
    assert waits[:3] == [0.5, 0.75, 1.125]
    assert waits == sorted(waits)
    assert waits[-1] == 30.0
    assert one.after(StillAtWork(2.0)).wait_seconds == 2.0


@pytest.mark.parametrize(("wanted", "waits"), [(0, 0.2), (0.01, 0.2), (3, 3.0), (3600, 30.0)])
def test_no_module_has_it_asked_for_too_often_or_too_seldom(wanted: float, waits: float) -> None:
    """Whatever it says."""
    assert accepted(wanted).wait_seconds == waits
    assert accepted().after(StillAtWork(wanted)).wait_seconds == waits


@pytest.mark.parametrize(
    ("left", "longest", "delay"),
    [(3600, 60, 20), (3600, 5, 5), (20.5, 60, 19.5), (10, 60, 9), (1.1, 60, 1.15), (0.5, 60, 0.55), (-1, 60, 0.05)],
)
def test_it_comes_just_before_its_deadline_and_once_after(left: float, longest: float, delay: float) -> None:
    """So that an end is heard that is just in time, and the module is told if it was not; no broker holds it for too long."""
    assert accepted(20).delay(left, longest=longest) == pytest.approx(delay)


def test_what_is_kept_of_it_is_read_again() -> None:
    """Also a handle beyond ASCII."""
    one = AcceptedAttempt.of(Acceptance("egg ✓"), begun_at=1.5)
    assert AcceptedAttempt.read(one.written()) == one
