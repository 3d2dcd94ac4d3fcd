"""Shows the fleet's status, with live updates: it is read at most every two seconds for all viewers, and only while there are viewers."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from toolfleet_gateway.console.page import ConsolePage, Outcome, PageTemplates, Shown, Visit
from toolfleet_gateway.console.sessions import ConsoleSession, ConsoleSessions
from toolfleet_gateway.http.streams import LAST, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.contracts import ModuleStatus
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.operations.call_index import TimePercentiles, percentiles_of
from toolfleet_tasks.operations.fleet_status import FleetStatus, read_status
from toolfleet_tasks.resources.audit import AuditReader

_WINDOW_SECONDS: Final = 300
"""The time that charts show."""

MOST_LINES: Final = 20_000
"""The number of lines that are kept: more than the last minutes of a busy fleet."""

_BUCKET_SECONDS = 5
_RATE_SECONDS = 60

_KEPT_SECONDS = 1.5  # a reading is good for so long
_FORGET_SECONDS = 60.0  # after so long without a reading the calls are read again
_FIRST_LINES, _MORE_LINES, _MOST_READS = 5_000, 1_000, 10

_PAUSE_SECONDS = 2.0  # between two events


@dataclass(frozen=True, slots=True)
class _EndedCall:
    ts: float
    outcome: str
    tool: str
    duration_ms: float | None
    queued_ms: float | None


@dataclass(frozen=True, slots=True)
class CallSummary:
    """The last minute's calls: how many a second, how each ended, what they took; `series` for charts, of the whole window.

    `series` are lists of the same length: seconds since the epoch, calls a second that succeeded and that did not, and the
    percentiles 50 and 95 of their run (ms).
    """

    per_second: float
    outcomes: dict[str, int]
    running: TimePercentiles
    waiting: TimePercentiles
    busiest: list[tuple[str, int]]
    series: list[list[float | None]]
    covers_seconds: float


class RecentCalls:
    """Takes lines of the audit, oldest first, and forgets those that are too old."""

    def __init__(self) -> None:
        self._calls = deque[_EndedCall](maxlen=MOST_LINES)

    def take(self, lines: Iterable[dict[str, Any]]) -> None:
        """Take more lines. Lines of changes are ignored."""
        for line in lines:
            ts = line.get("ts")
            if "change" not in line and isinstance(ts, int | float):
                outcome, tool = str(line.get("outcome", "unknown")), str(line.get("tool", "?"))
                self._calls.append(
                    _EndedCall(ts, outcome, tool, _number(line.get("duration_ms")), _number(line.get("queued_ms")))
                )

    def summary(self, now: float) -> CallSummary:
        """Return their summary at that moment (seconds since the epoch)."""
        recent = [call for call in self._calls if now - _WINDOW_SECONDS < call.ts <= now + _BUCKET_SECONDS]
        last = [call for call in recent if call.ts > now - _RATE_SECONDS]
        outcomes, busiest = dict[str, int](), dict[str, int]()
        for call in last:
            outcomes[call.outcome] = outcomes.get(call.outcome, 0) + 1
            busiest[call.tool] = busiest.get(call.tool, 0) + 1
        oldest = min((call.ts for call in recent), default=now)
        is_full = len(self._calls) == MOST_LINES
        return CallSummary(
            per_second=len(last) / _RATE_SECONDS,
            outcomes=outcomes,
            running=percentiles_of([call.duration_ms for call in last if call.duration_ms is not None]),
            waiting=percentiles_of([call.queued_ms for call in last if call.queued_ms is not None]),
            busiest=sorted(busiest.items(), key=lambda each: (-each[1], each[0]))[:8],
            series=_series(recent, now),
            covers_seconds=now - oldest if is_full else _WINDOW_SECONDS,
        )


def _series(calls: Sequence[_EndedCall], now: float) -> list[list[float | None]]:
    end = int(now // _BUCKET_SECONDS)
    buckets = {number: list[_EndedCall]() for number in range(end - _WINDOW_SECONDS // _BUCKET_SECONDS + 1, end + 1)}
    for call in calls:
        buckets.get(int(call.ts // _BUCKET_SECONDS), []).append(call)
    good, bad, p50, p95 = (list[float | None]() for _ in range(4))
    for each in buckets.values():
        succeeded = sum(call.outcome == "success" for call in each)
        taken = percentiles_of([call.duration_ms for call in each if call.duration_ms is not None])
        good.append(succeeded / _BUCKET_SECONDS)
        bad.append((len(each) - succeeded) / _BUCKET_SECONDS)
        p50.append(taken.p50)
        p95.append(taken.p95)
    return [[float(number * _BUCKET_SECONDS) for number in buckets], good, bad, p50, p95]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The fleet at the moment `at` (seconds since the epoch)."""

    at: float
    status: FleetStatus
    calls: CallSummary
    modules: dict[str, ModuleStatus]
    approvals: int


class FleetReadings:
    """The readings for all viewers of a gateway: viewers who ask at the same time share one reading."""

    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._lock = asyncio.Lock()
        self._last: FleetReading | None = None
        self._calls = RecentCalls()
        self._behind: str | None = None

    async def current(self) -> FleetReading:
        """Return the present reading. Raises `FleetUnavailable` within some seconds."""
        async with self._lock:
            age = None if self._last is None else fleet_clock.now() - self._last.at
            if self._last is None or age is None or not 0 <= age < _KEPT_SECONDS:
                if age is None or not 0 <= age < _FORGET_SECONDS:
                    self._calls, self._behind = RecentCalls(), None
                self._last = await self._read()
            return self._last

    async def _read(self) -> FleetReading:
        await self._read_calls()
        status = await read_status(self._settings)
        approvals = await self._fleet.approvals.count()
        modules = await self._fleet.modules.statuses()
        now = fleet_clock.now()
        return FleetReading(now, status, self._calls.summary(now), modules, approvals)

    async def _read_calls(self) -> None:
        async with AuditReader.of(self._settings) as reader:
            if self._behind is None:
                page = await reader.page(_FIRST_LINES)
                self._calls.take(reversed(page.lines))
                self._behind = page.last
                return
            for _ in range(_MOST_READS):
                coming = await reader.behind(self._behind, _MORE_LINES)
                self._calls.take(coming.lines)
                self._behind = coming.last or self._behind
                if coming.count < _MORE_LINES:
                    return


def overview_pages(
    readings: FleetReadings, streams: OpenStreams, sessions: ConsoleSessions, templates: PageTemplates
) -> list[ConsolePage]:
    """Return the overview's page, and the stream that keeps it current."""
    about = _AboutOverview(readings, streams, sessions, templates)
    return [ConsolePage("GET", "/", about.shown), ConsolePage("GET", "/live", about.streamed)]


class _AboutOverview:
    def __init__(
        self, readings: FleetReadings, streams: OpenStreams, sessions: ConsoleSessions, templates: PageTemplates
    ) -> None:
        self._readings = readings
        self._streams = streams
        self._sessions = sessions
        self._templates = templates

    async def shown(self, _: Visit) -> Outcome:
        reading = await self._readings.current()
        return Shown("overview", "Overview", {**_values(reading), "series": json.dumps(reading.calls.series)})

    async def streamed(self, visit: Visit) -> Outcome:
        return EventStream(visit.who, self._events(visit.session), self._streams)

    async def _events(self, session: ConsoleSession) -> AsyncGenerator[ServerSentEvent]:
        while True:
            try:
                if await self._sessions.has_ended(session):
                    yield LAST["revoked"]
                    return
                reading = await self._readings.current()
            except FleetUnavailable as exc:
                yield ServerSentEvent("away", json.dumps({"text": str(exc)}))
            else:
                part = self._templates.write("overview_now", _values(reading))
                yield ServerSentEvent("reading", json.dumps({"html": part, "series": reading.calls.series}))
            await asyncio.sleep(_PAUSE_SECONDS)


def _values(reading: FleetReading) -> dict[str, Any]:
    return {"reading": reading, "status": asdict(reading.status), "calls": reading.calls}
