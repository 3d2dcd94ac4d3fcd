"""Shows the fleet's status, with live updates."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

from toolfleet_gateway.console.fleet_readings import FleetReading, FleetReadings
from toolfleet_gateway.console.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.rendering import PageTemplates
from toolfleet_gateway.console.sessions import ConsoleSession, ConsoleSessions
from toolfleet_gateway.http.streams import LAST, EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.errors import FleetUnavailable

_PAUSE_SECONDS = 2.0  # between two events


def overview_pages(
    readings: FleetReadings, streams: OpenStreams, sessions: ConsoleSessions, templates: PageTemplates
) -> list[ConsolePage]:
    """The page, and the stream that keeps it current."""
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
