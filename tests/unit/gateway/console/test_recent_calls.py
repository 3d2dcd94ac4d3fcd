"""What the overview counts of the audit's last lines."""

from toolfleet_gateway.console.live.recent_calls import MOST_LINES, RecentCalls

NOW = 1_000_000.0


def line(age: float, outcome: str = "success", **more: object) -> dict[str, object]:
    return {"ts": NOW - age, "outcome": outcome, "tool": "owls.echo", "duration_ms": 10.0, "queued_ms": 1.0, **more}


def test_the_last_minute_is_counted() -> None:
    """By outcome and tool, with percentiles; older calls are in the series only, and changes are no calls."""
    calls = RecentCalls()
    calls.take(
        [line(200), line(30), line(20, "failed", duration_ms=30.0), line(1, change="tool_disabled"), {"ts": "x"}]
    )
    summary = calls.summary(NOW)

    assert summary.outcomes == {"success": 1, "failed": 1}
    assert summary.busiest == [("owls.echo", 2)]
    assert (summary.running.p50, summary.running.p95, summary.waiting.p50) == (10, 30, 1)
    assert summary.per_second == 2 / 60
    seconds, good, bad, _, _ = summary.series
    assert len(seconds) == len(good) == len(bad) == 60
    assert (sum(each or 0 for each in good) * 5, sum(each or 0 for each in bad) * 5) == (2, 1)


def test_a_flood_is_cut_and_said() -> None:
    """Only the latest lines are kept; the summary says how far they reach."""
    calls = RecentCalls()
    calls.take(line(100 - number * 100 / (MOST_LINES + 10)) for number in range(MOST_LINES + 10))

    assert calls.summary(NOW).covers_seconds < 100
    assert RecentCalls().summary(NOW).covers_seconds == 300


def test_nothing_is_no_percentile() -> None:
    """An idle fleet has zeros and gaps."""
    summary = RecentCalls().summary(NOW)

    assert (summary.per_second, summary.running.p95, summary.outcomes) == (0, None, {})
