"""How pages of the console show moments."""

import pytest

from toolfleet_gateway.console.rendering.formats import when
from toolfleet_registry.time import fleet_clock

JULY = 1_782_907_200.0  # 2026-07-01 12:00:00


@pytest.mark.parametrize(
    ("days", "shown"),
    [
        (0, ">07-01 12:00:00 "),
        (30, ">07-31 12:00:00 "),
        (365, ">2027-07-01 12:00:00 "),
        (-365, ">2025-07-01 12:00:00 "),
    ],
)
def test_a_moment_of_another_year_has_its_year(monkeypatch: pytest.MonkeyPatch, days: int, shown: str) -> None:
    """Within this year the day will do."""
    monkeypatch.setattr(fleet_clock, "now", lambda: JULY)
    assert shown in when(JULY + days * 86_400)
