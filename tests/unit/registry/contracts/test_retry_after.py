"""Retry-After: which values count, and how far."""

from datetime import UTC, datetime

import pytest

from toolfleet_registry.contracts.retry_after import LONGEST_SECONDS, parse_retry_after

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("1.5", 1.5),  # not in the standard, and sent
        ("1e9", LONGEST_SECONDS),
        ("9" * 5000, None),  # overflows to infinity
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 13:00:30 +0100", 30),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30),  # a date without a zone
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30),  # the standard's obsolete forms
        ("Thu Jan  1 12:00:30 2026", 30),
        ("Thu, 01 Jan 2015 12:00:00 GMT", 0),  # past
        ("Thu, 01 Jan 9999 12:00:00 GMT", LONGEST_SECONDS),
        ("Thu, 01 Jan 99999 12:00:00 GMT", None),
        ("Thu, 32 Jan 2026 12:00:00 GMT", None),
        ("Thu, 01 Jan 2026 12:00:00 +9999999999", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_seconds_and_dates_count_and_nonsense_does_not(value: str | None, seconds: float | None) -> None:
    """Seconds from now, never negative and never more than a day; `None` is no wish."""
    assert parse_retry_after(value, now=NOW) == seconds
