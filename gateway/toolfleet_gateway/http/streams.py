"""Sends Server-Sent Events, holds the streams that are open here, and ends each with its credential or its gateway."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolfleet_gateway.auth.authenticator import Authenticator
from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.auth.key_limits import KeyLimits
from toolfleet_gateway.http.problems import Problem
from toolfleet_tasks.aio import Closing

End = Literal["closing", "revoked"]

_FRACTION = 0.5  # of the streams, for a key without a limit of its own: no single key takes every stream
_WATCH_SECONDS = 0.7  # between two looks at each key: a revocation is effective within two seconds

_HEARTBEAT_SECONDS = 15.0
"""Most proxies cut a connection that is silent for a minute."""

RETRY_MS = 1_000
"""The milliseconds until a client opens its ended stream again."""
MEDIA_TYPE = "text/event-stream"

_SEND_SECONDS = 30.0  # for a client to take what it is sent; one that does not would keep it here for ever
_HEARTBEAT = b": still here\n\n"


class OpenStreams:
    """The open streams, at most `most`, and of each key at most its own limit over all gateways."""

    def __init__(self, most: int, closing: Closing, authenticator: Authenticator, limits: KeyLimits) -> None:
        self._most = most
        self._closing = closing
        self._authenticator = authenticator
        self._limits = limits
        # By all that `is_live` judges: tokens of one subject end at times of their own.
        self._open: dict[tuple[str, float | None], tuple[Identity, set[asyncio.Future[End]]]] = {}
        self._of_holder = Counter[str]()
        self.count = 0

    @asynccontextmanager
    async def place(self, who: Identity) -> AsyncGenerator[asyncio.Future[End]]:
        """Hold a stream open in this block; the yielded future says when it must end: at once in a gateway that ends.

        A refusal would be an error to clients of a load balancer that does not know yet. Raises `Problem` (503) if there is
        no room here, and `AuthRefused` (429) if the key may have no other. A key without a limit of its own may have
        half of the streams here.
        """
        if self.count >= self._most:
            detail = "So many streams are open here that no other can be."
            raise Problem(503, "busy", detail, retryable=True, retry_after_seconds=1)
        allowed = max(round(self._most * _FRACTION), 1)
        if who.streams is None and self._of_holder[who.name] >= allowed:
            detail = f"This key may have {allowed} streams open at once at a gateway, half of all: it has no limit of its own."
            raise AuthRefused("too-many-streams", detail, retry_after_seconds=1)
        self.count += 1
        self._of_holder[who.name] += 1
        ending: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        number = self._closing.tell(lambda: _end(ending, "closing"))
        credential = (who.name, who.expires_at)
        _, streams = self._open.setdefault(credential, (who, set()))
        streams.add(ending)
        try:
            async with self._limits.stream(who):
                yield ending
        finally:
            self.count -= 1
            self._of_holder[who.name] -= 1
            if not self._of_holder[who.name]:
                del self._of_holder[who.name]
            self._closing.forget(number)
            streams.discard(ending)
            if not streams and self._open.get(credential, (who, None))[1] is streams:
                del self._open[credential]

    async def watch(self) -> None:
        """End each stream after its own key was revoked, or its own token has expired. Runs as long as the gateway does."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for who, streams in list(self._open.values()):
                if not await self._is_live(who):
                    for ending in list(streams):
                        _end(ending, "revoked")

    async def _is_live(self, who: Identity) -> bool:
        try:
            return await self._authenticator.is_live(who)
        except AuthRefused:  # the keys cannot be read: neither could the client come again
            return True


def _end(ending: "asyncio.Future[End]", why: End) -> None:
    if not ending.done():
        ending.set_result(why)


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its kind, its data as JSON in one line, and the id that a client says when it comes again."""

    kind: str
    data: str
    id: str | None = None

    def encode(self) -> bytes:
        """Return the event as it is sent."""
        name = "" if self.id is None else f"id: {self.id}\n"
        return f"{name}event: {self.kind}\ndata: {self.data}\n\n".encode()


LAST: Mapping[End, ServerSentEvent] = {
    "closing": ServerSentEvent("closing", "{}"),
    "revoked": ServerSentEvent("revoked", "{}"),
}
"""The last event of a stream: of a gateway that ends, whose clients come again with their last id; and of a revoked key."""


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
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._who = who
        self._events = events
        self._streams = streams
        self._release = release
        self._heartbeat_seconds = heartbeat_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
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
        gone = asyncio.ensure_future(disconnected(receive))
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
            await _cancel(gone, coming)
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


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone away; what it sends meanwhile is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*waiting: "asyncio.Future[Any] | None") -> None:
    left = [one for one in waiting if one is not None]
    for one in left:
        one.cancel()
    if left:
        await asyncio.wait(left)
    for one in left:
        if not one.cancelled():
            one.exception()  # seen
