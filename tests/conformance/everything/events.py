"""Keeps a session's events, so that a stream that was closed can be gone on with."""

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage


class KeptEvents(EventStore):
    """All events of all streams, in order: a run has some hundred."""

    def __init__(self) -> None:
        self._events: list[tuple[StreamId, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep one; its id is its place."""
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send what came later in the same stream."""
        last = int(last_event_id) if last_event_id.isdecimal() else 0
        if not 0 < last <= len(self._events):
            return None
        stream = self._events[last - 1][0]
        for place, (other, message) in enumerate(self._events[last:], last + 1):
            if other == stream and message is not None:
                await send_callback(EventMessage(message, str(place)))
        return stream
