"""Where the results and news of an agent arrive: on one line, for all calls in flight.

Celery announces a finished task on the channel that is named like its result key. Pub/sub loses what is sent while
nobody listens, so what may have been missed is read: after each reconnect, and for old calls every few seconds.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import ResponseError

from toolfleet_registry.errors import NotPublished
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.cancellation import end, is_wanted
from toolfleet_tasks.redis.connection import Line, LineLost, Push
from toolfleet_tasks.redis.identity import RedisIdentity
from toolfleet_tasks.results.channel_watch import Watches
from toolfleet_tasks.results.end_check import EndCheck, Meta
from toolfleet_tasks.results.reader import STORED, Shelf
from toolfleet_tasks.results.verifier import Verifier

log = get_logger(__name__)

READY = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
"""Celery's states that nothing follows."""

_SWEEP_SECONDS = 5.0  # how often old calls are looked up
_SUBSCRIBE_CHUNK = 500  # channels a command


class Waiter(Protocol):
    """Who waits for a call's end."""

    def ended(self, meta: Meta) -> None:
        """The call has ended: `meta["status"]` is one of `READY`. The inbox has forgotten it."""
        ...

    def left(self) -> None:
        """The inbox was closed before that."""
        ...


@dataclass(slots=True, eq=False)
class Expected:
    """One who waits for a call's end, `since` when by the loop's clock.

    `waiter` is `None` once it waits no longer: it has us, and who have each other are work for the collector.
    """

    channel: bytes
    waiter: Waiter | None
    since: float


@dataclass(slots=True)
class _Ear:
    """A channel that is listened to, and who waits for it: who published the call, and who joined it."""

    waiting: list[Expected]
    is_heard: bool = False
    listening: asyncio.Future[None] | None = None


class Inbox:
    """Who waits for what, on a line of its own or one that it shares. Belongs to the line's event loop.

    `reads` is another line to the same Redis, not started yet: what was missed, or is large, is read over that one.
    `news` maps a channel to what is called for each message on it, and once after each connect, as something may have
    been missed. Ends that the `verifier` does not believe are no ends.
    """

    def __init__(
        self, line: Line, reads: Line, verifier: Verifier, *, news: Mapping[str, Callable[[], None]], keys: Keys
    ) -> None:
        self._line = line
        self._shelf = Shelf(reads, self._found)
        self.verifier = verifier
        """Says what is believed of a call."""
        self._check = EndCheck(verifier, self._shelf, keys=keys, ended=self._end) if verifier.is_on else None
        self._loop = asyncio.get_running_loop()
        self._result_key = keys.result("").encode()
        self._progress_key = keys.progress("").encode()
        self._news = {channel.encode(): tell for channel, tell in news.items()}
        self._expected: dict[bytes, _Ear] = {}  # by channel
        self.watches = Watches(line, self._shelf.fetch)
        """Who wants to hear more of a call than its end."""
        self._leaving: list[bytes] = []
        self._is_new = asyncio.Event()  # the connection
        self.identity = RedisIdentity(line, keys)
        """Which server is at the other end, and whether it has lost anything."""
        self._task: asyncio.Task[None] | None = None
        line.on_push = self._take
        line.on_connect.append(self._listen_again)

    def start(self) -> None:
        """Begin to look for what was missed, until `aclose`."""
        self._task = self._loop.create_task(self._look(), name="toolfleet-inbox")

    async def aclose(self) -> None:
        """Listen no longer. Who waits for a result is told; who waits in `listening` gets `NotPublished`."""
        if self._task is not None:
            await end([self._task])
        if self._check is not None:
            await self._check.aclose()
        await self._shelf.aclose()
        if self._listen_again in self._line.on_connect:
            self._line.on_connect.remove(self._listen_again)
        expected, self._expected = self._expected, {}
        for ear in expected.values():
            if ear.listening is not None and not ear.listening.done():
                ear.listening.set_exception(NotPublished("the fleet was left"))
                ear.listening.exception()  # seen: there may be nobody who waits
            for one in ear.waiting:
                if one.waiter is not None:
                    one.waiter.left()

    def expect(self, call_id: str, waiter: Waiter) -> Expected:
        """Listen for the end of a call. What is sent over the inbox's own line from now on cannot be answered unheard.

        Several may wait for one call: each of them hears.
        """
        channel = self._channel(call_id)
        expected = Expected(channel, waiter, self._loop.time())
        ear = self._expected.get(channel)
        if ear is None:
            self._expected[channel] = _Ear([expected])
            self._line.tell("SUBSCRIBE", channel)
        else:
            ear.waiting.append(expected)
        return expected

    async def listening(self, call_id: str) -> None:
        """Wait until nothing that is sent from now on, over whichever line, can be answered unheard. Has no deadline."""
        ear = self._expected.get(self._channel(call_id))
        if ear is not None and not ear.is_heard:  # a job's step has nobody who waits for it here
            ear.listening = ear.listening or self._loop.create_future()
            await asyncio.shield(ear.listening)  # others may wait for it, too

    def forget(self, expected: Expected) -> None:
        """Have this one wait no longer."""
        ear = self._expected.get(expected.channel)
        if ear is not None and expected in ear.waiting:
            ear.waiting.remove(expected)
            expected.waiter = None
            if not ear.waiting:
                self._drop(expected.channel)

    def progress_channel(self, call_id: str) -> bytes:
        """Where it is announced how far a call is; also the key of the latest."""
        return self._progress_key + call_id.encode()

    async def peek(self, key: bytes) -> bytes | None:
        """What a key holds now. Raises `OSError` or `ResponseError` if Redis does not answer in a second."""
        return await self._shelf.peek(key)

    def found(self, call_id: str, stored: bytes | None) -> None:
        """Take what is stored of a call as if it had just been announced."""
        self._hear(self._channel(call_id), stored)

    def _channel(self, call_id: str) -> bytes:
        return self._result_key + call_id.encode()

    def _drop(self, channel: bytes) -> None:
        ear = self._expected.pop(channel)
        if self._check is not None:
            self._check.forget(channel)
        if ear.listening is not None:
            ear.listening.cancel()
        if not self._leaving:
            self._loop.call_soon(self._leave)
        self._leaving.append(channel)

    def _leave(self) -> None:
        """Unsubscribe from all that were dropped in a tick at once."""
        leaving, self._leaving = self._leaving, []
        if channels := [channel for channel in leaving if channel not in self._expected]:
            self._line.tell("UNSUBSCRIBE", *channels)

    def _listen_again(self) -> None:
        channels = [*self._news, *self._expected, *self.watches]
        for start in range(0, len(channels), _SUBSCRIBE_CHUNK):
            self._line.tell("SUBSCRIBE", *channels[start : start + _SUBSCRIBE_CHUNK])
        self._is_new.set()
        self.identity.connection_lost()

    def _take(self, frame: Push) -> None:
        kind = frame[0]
        if kind == b"message":
            if frame[1] in self._expected:
                self._hear(frame[1], frame[2])
            elif frame[1] in self.watches:
                self.watches.announced(frame[1], frame[2])
            elif frame[1] in self._news:
                self._news[frame[1]]()
        elif kind == b"subscribe":
            self._hears(frame[1])

    def _hears(self, channel: bytes) -> None:
        ear = self._expected.get(channel)
        if ear is not None:
            ear.is_heard = True
            if ear.listening is not None and not ear.listening.done():
                ear.listening.set_result(None)
        elif channel in self.watches:
            self.watches.subscribed(channel)
        elif channel in self._news:
            self._news[channel]()

    def _found(self, key: bytes, content: bytes | None) -> None:
        if key in self.watches:
            self.watches.found(key, content)
        else:
            self._hear(key, content)

    def _hear(self, channel: bytes, content: bytes | None) -> None:
        """Something was announced, or found, of a call."""
        meta = _meta(content)
        if channel not in self._expected or meta is None:
            return
        status = meta["status"]
        if status in READY and (self._check is None or self._check.passes(channel, meta)):
            self._end(channel, meta)
        elif status == STORED:
            self._shelf.fetch(channel)

    def _end(self, channel: bytes, meta: Meta) -> None:
        ear = self._expected.get(channel)
        if ear is None:
            return
        if ear.listening is not None and not ear.listening.done():
            ear.listening.set_result(None)  # what there was to be heard has come before Redis said that we listen
        self._drop(channel)
        for expected in ear.waiting:
            waiter, expected.waiter = expected.waiter, None
            try:
                if waiter is not None:
                    waiter.ended(meta)
            except Exception:  # a defect of ours: an agent that hears no results any more would be worse
                log.exception("result_not_taken", channel=channel.decode())

    async def _look(self) -> None:
        """Read the results whose announcement may have been lost: of all calls on a new connection, else of old ones."""
        while is_wanted():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._is_new.wait()
            if not self._line.is_connected:
                continue
            since = self._loop.time() - (0 if self._is_new.is_set() else _SWEEP_SECONDS)
            try:
                if self._is_new.is_set():
                    self._is_new.clear()
                    is_first = not self.identity.is_known
                    await self.identity.recognise()
                    if is_first:  # nothing was published before
                        continue
                else:
                    await self.identity.look_again()
                await self._shelf.sweep(
                    [channel for channel, ear in self._expected.items() if ear.waiting[0].since <= since]
                )
            except (LineLost, ResponseError) as exc:
                log.warning("results_not_swept", error=str(exc))
            except Exception:  # a defect of ours: an agent that finds no lost results any more would be worse
                log.exception("results_not_swept")


def _meta(stored: bytes | None) -> Meta | None:
    """What Celery wrote, or `None` for anything else: a stranger's message must not end the listening."""
    try:
        meta = json.loads(stored or b"null")
    except (ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) and isinstance(meta.get("status"), str) else None
