"""Computes the due times of a schedule: once, or by a cron expression, on a clock that may be put forward and back.

Five fields, as in `crontab(5)`: minute, hour, day of the month, month, day of the week. If both days are restricted,
either is enough. A time that the clock skips comes right after the change; one that it shows twice comes once, unless
the hour is `*` or `*/n`: a job for the whole day also runs in the hour that is repeated.
"""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from toolfleet_registry.contracts.jobs import Schedule
from toolfleet_registry.time import fleet_clock

LONGEST_SECONDS = 366 * 86_400
"""No job may last longer: one of once a year comes due, and one that was forgotten ends."""

_LATE_SECONDS = 60.0  # that `at` may lie in the past: a model's request has been on its way
_LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()  # every zone can still write it down
_FIELDS = 5
# Not croniter's other letters: "r" is another time at every look. "l" is the last day of a month.
_WORD = re.compile("jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat|l")
_FORM = "its fields are minute, hour, day of the month, month and day of the week, as in '*/15 9-17 * * mon-fri'"
_LETTERS = re.compile(r"[a-z]+")


def check_schedule(schedule: Schedule) -> None:
    """Raise `ValueError`, in one sentence, for a schedule that says nothing, cannot be read, is over, or never comes."""
    if (schedule.at is None) == (schedule.cron is None):
        raise ValueError("A schedule has one of `at`, `delay_seconds` and `cron`.")
    if schedule.at is not None:
        _check_at(schedule.at)
    elif next_after(schedule, fleet_clock.now()) is None:
        raise ValueError(f"The cron expression {schedule.cron!r} never comes due.")


def next_after(schedule: Schedule, after: float) -> float | None:
    """Return the first due time later than `after`; `None` if there is none. Raises `ValueError` as above."""
    if schedule.cron is None:
        return schedule.at if schedule.at is not None and schedule.at > after else None
    from croniter import CroniterError, croniter  # noqa: PLC0415 - most processes have no such schedule

    text, zone = _expression(schedule.cron), _zone(schedule.timezone)
    is_all_day = text.split()[1].startswith("*")
    try:
        times = croniter(text, datetime.fromtimestamp(after, zone), ret_type=datetime)
        return next((at for at in _dates(times, is_all_day=is_all_day) if at > after), None)
    except CroniterError as exc:
        raise ValueError(f"The cron expression {schedule.cron!r} cannot be read: {_FORM}.") from exc


def _dates(times: Any, *, is_all_day: bool) -> Iterator[float]:
    """Yield croniter's times, each once."""
    from croniter import CroniterBadDateError  # noqa: PLC0415 - as above

    while True:
        try:
            found: datetime = times.get_next()
        except CroniterBadDateError:  # within 50 years
            return
        if is_all_day or not found.fold:
            yield found.timestamp()


def _check_at(at: float) -> None:
    if not math.isfinite(at) or at > _LAST:
        raise ValueError("`at` is no time that a calendar has.")
    if at < fleet_clock.now() - _LATE_SECONDS:
        raise ValueError(f"`at` is in the past: it is {fleet_clock.utc_now().isoformat(timespec='seconds')} now.")


def _expression(text: str) -> str:
    fields = text.lower().split()
    if len(fields) != _FIELDS:
        raise ValueError(f"A cron expression has five fields, and {text!r} has {len(fields)}.")
    for word in _LETTERS.findall(" ".join(fields)):
        if not _WORD.fullmatch(word):
            raise ValueError(f"The cron expression {text!r} cannot be read: {word!r} is no month and no day; {_FORM}.")
    return " ".join(fields)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:  # unknown, no name, a folder of zones
        raise ValueError(f"{name!r} is no time zone: give an IANA name such as 'Europe/Berlin'.") from exc
