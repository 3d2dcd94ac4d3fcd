"""Parses `Retry-After`: seconds or an HTTP date; nonsense counts as nothing."""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from toolfleet_registry.time import fleet_clock

# A day: a module that asks for more does not expect this call again, and no number of theirs may overflow ours.
LONGEST_SECONDS = 86_400.0


def parse_retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds to wait, 0 to `LONGEST_SECONDS`; `None` for an absent or a senseless value. A past date is 0."""
    if value is None:
        return None
    seconds = _seconds(value.strip(), now or fleet_clock.utc_now())
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_SECONDS)


def _seconds(value: str, now: datetime) -> float | None:
    try:
        seconds = float(value)  # the standard knows whole seconds only; some services send fractions
    except ValueError:
        return _until(value, now)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _until(value: str, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # A date in -0000 comes without a zone; HTTP dates are always in UTC.
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp()
