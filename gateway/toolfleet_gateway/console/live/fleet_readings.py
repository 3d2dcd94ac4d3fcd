"""Reads the fleet's status and its latest calls for all who watch: once in two seconds at most, and only while somebody does."""

import asyncio
from dataclasses import dataclass

from toolfleet_gateway.console.live.recent_calls import CallSummary, RecentCalls
from toolfleet_registry.contracts import ModuleStatus
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.operations.audit_reader import AuditReader
from toolfleet_tasks.operations.fleet_status import FleetStatus, read_status

_KEPT_SECONDS = 1.5  # a reading is good for so long
_FORGET_SECONDS = 60.0  # after so long without a reading the calls are read anew
_FIRST_LINES, _MORE_LINES, _MOST_READS = 5_000, 1_000, 10


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The fleet at the moment `at` (seconds since the epoch)."""

    at: float
    status: FleetStatus
    calls: CallSummary
    modules: dict[str, ModuleStatus]
    approvals: int


class FleetReadings:
    """One for all watchers of a gateway: a second one who asks meanwhile waits for the first one's answer."""

    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._lock = asyncio.Lock()
        self._last: FleetReading | None = None
        self._calls = RecentCalls()
        self._behind: str | None = None

    async def current(self) -> FleetReading:
        """How it is. Raises `FleetUnavailable` within some seconds."""
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
                self._behind = coming.last
                if len(coming.lines) < _MORE_LINES:
                    return
