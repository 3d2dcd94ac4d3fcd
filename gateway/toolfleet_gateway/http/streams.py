"""Sends Server-Sent Events: one stream a client, with heartbeats, until its events end, the client goes, or the gateway."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.http.open_streams import End, OpenStreams

HEARTBEAT_SECONDS = 15.0
"""Proxies cut a connection on which nothing is said for a minute, most often."""
RETRY_MS = 1_000
"""Until a client comes again whose stream has ended."""
MEDIA_TYPE = "text/event-stream"

_SEND_SECONDS = 30.0  # for a client to take what it is sent; one that does not would keep it here for ever
_HEARTBEAT = b": still here\n\n"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its kind, its data as JSON in one line, and the id that a client says when it comes again."""

    kind: str
    data: str
    id: str | None = None

    def encode(self) -> bytes:
        """As it is sent."""
        name = "" if self.id is None else f"id: {self.id}\n"
        return f"{name}event: {self.kind}\ndata: {self.data}\n\n".encode()


LAST: Mapping[End, ServerSentEvent] = {
    "closing": ServerSentEvent("closing", "{}"),
    "revoked": ServerSentEvent("revoked", "{}"),
}
"""The last event of a gateway that ends: come again, to whichever there is, with the last id; and of one whose key is good no longer."""


class EventStream(Response):
    """A streaming answer to `who`: the items of `events`, as they come. `release` is called at any end."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        who: Identity,
        events: AsyncGenerator[ServerSentEvent],
        streams: OpenStreams,
        *,
        release: Callable[[], None] = lambda: None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._who = who
        self._events = events
        self._streams = streams
        self._release = release
        self._heartbeat_seconds = heartbeat_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        try:
            async with self._streams.place(self._who) as ending:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                if scope["method"] == "HEAD":
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                else:
                    await self._stream(receive, ending, _Writer(send, scope.get("toolfleet.abort")))
        finally:
            self._release()
            await self._events.aclose()

    async def _stream(self, receive: Receive, ending: "asyncio.Future[End]", writer: "_Writer") -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        coming: asyncio.Future[ServerSentEvent] | None = None
        try:
            await writer.write(f"retry: {RETRY_MS}\n\n".encode())
            while not gone.done():
                coming = coming or asyncio.ensure_future(anext(self._events))
                waited: set[asyncio.Future[Any]] = {coming, gone, ending}
                await asyncio.wait(waited, timeout=self._heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    event, coming = coming, None
                    await writer.write(event.result().encode())
                elif ending.done():
                    await writer.write(LAST[ending.result()].encode())
                    break
                elif not gone.done():
                    await writer.write(_HEARTBEAT)
        except StopAsyncIteration:
            pass
        except TimeoutError:
            writer.abort()
            return
        finally:
            await _end(gone, coming)
        await writer.end()


class _Writer:
    def __init__(self, send: Send, abort: Callable[[], None] | None) -> None:
        self._send = send
        self._abort = abort

    async def write(self, data: bytes) -> None:
        """Write data. Raises `TimeoutError` if the client reads nothing."""
        async with asyncio.timeout(_SEND_SECONDS):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SEND_SECONDS):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def abort(self) -> None:
        if self._abort is not None:
            self._abort()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*waiting: "asyncio.Future[Any] | None") -> None:
    left = [one for one in waiting if one is not None]
    for one in left:
        one.cancel()
    if left:
        await asyncio.wait(left)
    for one in left:
        if not one.cancelled():
            one.exception()  # seen
