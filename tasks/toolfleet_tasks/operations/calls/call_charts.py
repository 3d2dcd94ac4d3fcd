"""Computes how calls went in a span of time: how many ended in each step and how, and percentiles of their times."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan

from toolfleet_tasks.operations.calls.call_filter import CallFilter
from toolfleet_tasks.operations.calls.call_segment import CallSegment

_PARTS = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class TimePercentiles:
    """The median, the 95th and the 99th percentile of some times, in milliseconds; `None`: no call has such a time."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class CallCharts:
    """`starts` of the steps (ms since the epoch); for each outcome that occurs, how many calls ended in each step.

    `queued` is the time from being published to the last attempt's begin, `ran` from there to the end.
    """

    starts: list[int]
    outcomes: dict[str, list[int]]
    queued: TimePercentiles
    ran: TimePercentiles
    calls: int


def charts_of(segments: Sequence[CallSegment], wanted: CallFilter, *, since: int, until: int, steps: int) -> CallCharts:
    """Return the charts of matching calls that ended at `since` or later and before `until`.

    Raises `ValueError` for an empty period.
    """
    if until <= since or steps < 1:
        raise ValueError("`until` is after `since`, and there is at least one step")
    starts = [since + (until - since) * step // steps for step in range(steps)]
    within = replace(wanted, since=max(since, wanted.since or 0), until=min(until, wanted.until or until))
    outcomes, queued, ran, calls = dict[str, list[int]](), list[float](), list[float](), 0
    for segment in segments:
        rows = segment.rows(within)[::-1]
        calls += len(rows)
        for step, in_step in enumerate(_by_step(segment, rows, starts)):
            for outcome, count in segment.outcomes(in_step).items():
                outcomes.setdefault(outcome, [0] * steps)[step] += count
        more_queued, more_ran = segment.times(rows)
        queued += more_queued
        ran += more_ran
    return CallCharts(starts, outcomes, percentiles_of(queued), percentiles_of(ran), calls)


def _by_step(segment: CallSegment, rows: Sequence[int], starts: Sequence[int]) -> list[Sequence[int]]:
    """The rows of each step, of rows that are in the order of time."""
    firsts = [bisect_left(rows, segment.first_at(start)) for start in starts]
    return [rows[first:following] for first, following in pairwise([*firsts, len(rows)])]


def percentiles_of(times: Sequence[float]) -> TimePercentiles:
    """Return percentiles by the nearest rank: the smallest time that is at least as long as that part of all.

    NaN is left out.
    """
    known = sorted(time for time in times if not isnan(time))
    if not known:
        return TimePercentiles()
    return TimePercentiles(*(known[max(-(-round(part * 100) * len(known) // 100), 1) - 1] for part in _PARTS))
