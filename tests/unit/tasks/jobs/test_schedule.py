"""Schedules: when they come due, on clocks that are put forward and back, and which are refused."""

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from support.programs.counted_calls import counted
from toolfleet_registry.contracts.jobs import Schedule
from toolfleet_tasks.jobs.state_machine import check_schedule, next_after

BERLIN = ZoneInfo("Europe/Berlin")
MOST_CALLS = 20_000  # of functions: fifty years take 7,000


def times(cron: str, after: str, count: int, *, timezone: str = "Europe/Berlin") -> list[str]:
    """The next dates, in that zone: `after` is one there, too."""
    zone, schedule = ZoneInfo(timezone), Schedule(cron=cron, timezone=timezone)
    at, found = datetime.fromisoformat(after).replace(tzinfo=zone).timestamp(), list[str]()
    for _ in range(count):
        due = next_after(schedule, at)
        assert due is not None
        assert due > at
        at = due
        found.append(datetime.fromtimestamp(at, zone).isoformat(timespec="minutes"))
    return found


def test_a_time_that_the_clock_skips_comes_right_after_the_change() -> None:
    """In Berlin there is no 02:30 on 28 March 2027; the day after there is."""
    assert times("30 2 * * *", "2027-03-27 12:00", 3) == [
        "2027-03-28T03:00+02:00",
        "2027-03-29T02:30+02:00",
        "2027-03-30T02:30+02:00",
    ]


def test_a_time_that_the_clock_shows_twice_comes_once() -> None:
    """In Berlin 02:30 comes twice on 31 October 2027: a daily job runs at the first."""
    assert times("30 2 * * *", "2027-10-30 12:00", 3) == [
        "2027-10-31T02:30+02:00",
        "2027-11-01T02:30+01:00",
        "2027-11-02T02:30+01:00",
    ]


def test_what_happens_all_day_long_also_happens_in_the_hour_that_is_repeated() -> None:
    """Every half hour is 30 minutes apart, also when clocks are put back."""
    assert times("*/30 * * * *", "2027-10-31 01:40", 5) == [
        "2027-10-31T02:00+02:00",
        "2027-10-31T02:30+02:00",
        "2027-10-31T02:00+01:00",
        "2027-10-31T02:30+01:00",
        "2027-10-31T03:00+01:00",
    ]


@pytest.mark.parametrize("change", ["2027-03-27 22:00", "2027-10-30 22:00"], ids=["forward", "back"])
def test_a_quarter_of_an_hour_is_one_on_every_clock(change: str) -> None:
    """`*/15` comes every 900 s through both changes."""
    at = datetime.fromisoformat(change).replace(tzinfo=BERLIN).timestamp()
    schedule = Schedule(cron="*/15 * * * *", timezone="Europe/Berlin")
    for _ in range(40):
        assert next_after(schedule, at) == at + 900
        at += 900


def test_a_change_may_be_one_of_half_an_hour() -> None:
    """On Lord Howe Island there is no 02:15 on 4 October 2026, and 01:45 comes twice on 4 April 2027."""
    zone = "Australia/Lord_Howe"
    forward = times("15 2 * * *", "2026-10-03 12:00", 2, timezone=zone)
    back = times("45 1 * * *", "2027-04-03 12:00", 2, timezone=zone)

    assert forward == ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]
    assert back == ["2027-04-04T01:45+11:00", "2027-04-05T01:45+10:30"]


def test_the_wall_clock_counts_and_not_utc() -> None:
    """Nine in the morning is nine in summer and in winter."""
    assert times("0 9 * * *", "2027-03-27 08:00", 2) == ["2027-03-27T09:00+01:00", "2027-03-28T09:00+02:00"]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-03-01", "2028-02-29T00:00+00:00"),
        ("0 0 29 feb *", "2096-03-01", "2104-02-29T00:00+00:00"),  # 2100 is no leap year
        ("0 9 * * mon-fri", "2026-11-20 10:00", "2026-11-23T09:00+00:00"),  # from a Friday
        ("0 9 * JAN,jul SUN", "2026-11-20", "2027-01-03T09:00+00:00"),
        ("0 9 * * 7", "2026-11-20", "2026-11-22T09:00+00:00"),  # Sunday is 0, and 7
        ("0 9 13 * fri", "2026-11-21", "2026-11-27T09:00+00:00"),  # either of both is enough
        ("0 9 L * *", "2027-02-01", "2027-02-28T09:00+00:00"),
        ("5-59/20 8-9 1 1 *", "2026-11-20", "2027-01-01T08:05+00:00"),
    ],
)
def test_a_date_is_that_of_a_calendar(cron: str, after: str, expected: str) -> None:
    """Leap days, names of months and of days, both kinds of days, and the last one of a month."""
    assert times(cron, after, 1, timezone="UTC") == [expected]


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("0 0 31 2 *", "never comes due"),
        ("0 0 31 4,6,9,11 *", "never comes due"),
        ("", "has 0"),
        ("* * * *", "has 4"),
        ("* * * * * *", "has 6"),  # seconds
        ("@daily", "has 1"),
        ("60 * * * *", "cannot be read"),
        ("* * * * 8", "cannot be read"),
        ("*/0 * * * *", "cannot be read"),
        ("0-99999999999 * * * *", "cannot be read"),
        ("nine * * * *", "'nine' is no month"),
        ("R R * * *", "'r' is no month"),  # another time at every look
        ("H H * * *", "'h' is no month"),
        ("-1 * * * *", "cannot be read"),
        ("* * * * *\x00", "cannot be read"),
        ("jan * * * *", "cannot be read"),
        ("* * * mon *", "cannot be read"),
        ("٣ * * * *", "cannot be read"),  # a digit, but none of ours
        ("0," * 90 + "0 0 30 2 mon#5", "never comes due"),
    ],
)
def test_an_expression_that_says_nothing_is_refused_at_once(cron: str, reason: str) -> None:
    """What cannot be read, and what no calendar has, is one sentence after a bounded search."""

    def check() -> None:
        with pytest.raises(ValueError, match=reason):
            check_schedule(Schedule(cron=cron))

    assert counted(check)[1] < MOST_CALLS


@pytest.mark.parametrize(
    "name", ["Mars/Phobos", "", "Europe", "../../etc/passwd", "/etc/localtime", "x" * 5000, "a\x00b"]
)
def test_a_zone_that_nobody_knows_is_refused(name: str) -> None:
    """Whatever a model writes as a time zone is one or none."""
    with pytest.raises(ValueError, match="is no time zone"):
        check_schedule(Schedule(cron="0 9 * * *", timezone=name))


def test_a_single_time_comes_once() -> None:
    """`at` is due until then, and never again."""
    at = (datetime.now(UTC) + timedelta(hours=1)).timestamp()
    schedule = Schedule(at=at)
    check_schedule(schedule)

    assert next_after(schedule, at - 1) == at
    assert next_after(schedule, at) is None


def test_a_single_time_may_just_have_passed() -> None:
    """Half a minute ago is now; ten minutes ago is an error of whoever says it."""
    check_schedule(Schedule(at=time.time() - 30))
    with pytest.raises(ValueError, match="is in the past: it is 2"):
        check_schedule(Schedule(at=time.time() - 600))


@pytest.mark.parametrize("at", [float("inf"), float("nan"), 1e18])
def test_a_time_that_no_calendar_has_is_refused(at: float) -> None:
    """Neither for ever nor in a million years."""
    with pytest.raises(ValueError, match="no time that a calendar has"):
        check_schedule(Schedule(at=at))


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(at=5e9, cron="* * * * *")], ids=["neither", "both"])
def test_a_schedule_has_one_time(schedule: Schedule) -> None:
    """A time, a delay or an expression."""
    with pytest.raises(ValueError, match="one of `at`, `delay_seconds` and `cron`"):
        check_schedule(schedule)
