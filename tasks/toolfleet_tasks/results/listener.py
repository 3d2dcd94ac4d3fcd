"""Listens over one connection for the results of an agent's calls, their progress and log messages, and other events.

A server that was restarted, or promoted by a fail-over, may know less; and an operator may delete all.

Celery announces a finished task on the channel that is named like its result key. For calls with ids that it has made, an agent
listens on one channel of its own instead, its reply channel, as soon as all processes are known to announce ends there, too.
Pub/sub loses messages while there is no listener, and an older process may come back, so missed results are read: after each
reconnect, each second for calls that are heard of on the reply channel only, and for others every few seconds.
"""

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import from_json
from redis.exceptions import ResponseError

from toolfleet_registry.contracts.call_context import LogLevel, LogMessage, Progress, is_heard, log_message_in
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.shared_timers import shared_timers
from toolfleet_tasks.aio import end, is_wanted
from toolfleet_tasks.messages.signing import split_json
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, Push, RedisConnectionLost
from toolfleet_tasks.results.verifier import STORED, EndCheck, Meta, ResultReader, Verifier
from toolfleet_tasks.scripts import REPLY_DIGITS, script

log = get_logger(__name__)
_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
_READY = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
"""Celery's states that nothing follows."""

_SWEEP_SECONDS = 5.0  # how often old calls are looked up that have channels of their own
# How often the others are looked up, and from which age on: an end that is not announced is found within two seconds.
_ASK_SECONDS, _SILENT_SECONDS = 1.0, 0.8
_REPLIES_COUNT_SECONDS = 2.5  # for which an answer about the other processes counts: one look may be late

_REPLIES = script("presence/replies")
"""Returns 1 if all live processes announce ends on reply channels, else 0."""

SIGNAL = b"input_required"
"""Announces on a call's progress channel that the call asks something; on the reply channel the call's id follows it."""

Hear = Callable[[bytes], None]
_CHUNK = 500  # channels a command
_MOST_MESSAGES = 1000  # of two attempts, and more than they may have: a writer to Redis can write anything
_MOST_BYTES = 64 * 2**10  # of one


class RedisIdentity:
    """The server and data that a connection leads to.

    Belongs to the connection's event loop; times are those of its clock.
    """

    def __init__(self, connection: PipelinedConnection, keys: Keys) -> None:
        self._connection = connection
        self._key = keys.data_id
        self._loop = asyncio.get_running_loop()
        self._run_id: bytes | None = None
        self._is_known = asyncio.Event()
        self._changed_at = 0.0
        self.data_id = ""
        """Names the data that Redis has, as long as that has lost nothing; "" if it is not known, or not for this user."""

    @property
    def is_known(self) -> bool:
        """Return whether any server has been identified."""
        return self._run_id is not None

    @property
    def name(self) -> str:
        """Names the server and its data; "" if either is not known. Under another name, what was written before may be lost."""
        return f"{self._run_id.decode()} {self.data_id}" if self._run_id and self.data_id else ""

    def connection_lost(self) -> None:
        """Note that the next connection may lead to another server."""
        self._is_known.clear()

    async def known(self) -> None:
        """Wait until it is known which server answers now. Has no deadline. Raises `RedisConnectionClosed`."""
        await self._connection.connected()
        await self._is_known.wait()

    def is_same_since(self, moment: float) -> bool:
        """Return whether nothing is known to have been lost since a time, for commands on this connection, while Redis has `data_id`."""
        return moment > self._changed_at and self.data_id != ""

    async def recognise(self) -> None:
        """Identify the server of a new connection. Raises `RedisConnectionLost`."""
        try:
            found = _RUN_ID.search(await self._connection.send("INFO", "server"))
        except ResponseError:  # not for this user
            found = None
        before, self._run_id = self._run_id, found[1] if found else b""
        if before is not None and (not before or before != self._run_id):
            self._changed_at = self._loop.time()
        await self.recheck()
        self._is_known.set()

    async def recheck(self) -> None:
        """Identify the data of the same connection. Raises `RedisConnectionLost`."""
        with contextlib.suppress(ResponseError):  # a replica takes nothing
            await self._connection.send("SET", self._key, randomness.uuid4().hex, "NX")
        try:
            found = await self._connection.send("GET", self._key)
        except ResponseError:  # as above
            found = None
        before, self.data_id = self.data_id, (found or b"").decode()
        if before not in {"", self.data_id}:
            self._changed_at = self._loop.time()


class Waiter(Protocol):
    """An object that waits for a call's end."""

    def ended(self, meta: Meta) -> None:
        """Take the call's end: `meta["status"]` is one of `_READY`. The listener has forgotten it."""
        ...

    def left(self) -> None:
        """Note that the listener was closed before the end."""
        ...


@dataclass(slots=True, eq=False)
class Expected:
    """A waiter for a call's end, `since` when by the loop's clock.

    `waiter` is `None` once it waits no longer: it has us, and who have each other are work for the collector. The first of a call
    stands for its channel, and has those who joined it `behind`; nearly always it is alone, so that is one object a call.
    """

    channel: bytes
    waiter: Waiter | None
    since: float
    behind: "list[Expected] | None" = None
    has_channel: bool = True  # which was subscribed to; else its end is heard on the reply channel
    is_heard: bool = False
    listening: asyncio.Future[None] | None = None

    @property
    def everyone(self) -> "Sequence[Expected]":
        """Return the first waiter, though it may wait no longer, and those that joined it."""
        return (self, *(self.behind or ()))


class ResultListener:
    """The waiters of all calls, on a connection of their own or a shared one.

    Belongs to the connection's event loop.

    `reads` is another connection to the same Redis, not started yet: missed and large results are read over that one.
    `handlers` maps a channel to a callback for each message on it, and once after each connect, as something may have
    been missed. Ends that the `verifier` refuses are ignored.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        reads: PipelinedConnection,
        verifier: Verifier,
        *,
        handlers: Mapping[str, Callable[[], None]],
        keys: Keys,
    ) -> None:
        self._connection = connection
        self._reader = ResultReader(reads, self._found)
        self.verifier = verifier
        """Says what is believed of a call."""
        self._check = EndCheck(verifier, self._reader, keys=keys, ended=self._end) if verifier.is_on else None
        self._loop = asyncio.get_running_loop()
        self.timers = shared_timers(self._loop)
        """For the deadlines of those who wait."""
        self._result_key, self._progress_key = keys.result("").encode(), keys.progress("").encode()
        self.keys = keys
        """Names what there is in its Redis."""
        self._handlers = {channel.encode(): tell for channel, tell in handlers.items()}
        self._expected: dict[bytes, Expected] = {}  # by channel: who was first
        self.watches = ChannelWatch(connection, self._reader.fetch)
        """Who wants to hear more of a call than its end."""
        self._subscriptions = ChannelSubscriptions(connection, lambda channel: channel in self._expected)
        self._name = randomness.uuid4_text()[-REPLY_DIGITS:]
        self._reply, self._repliers = keys.reply(self._name).encode(), keys.repliers.encode()
        self._has_replies_until = self._used_at = float("-inf")  # by the loop's clock
        self._awake = asyncio.Event()
        self._is_new = False  # the connection
        self._rests = True  # no call has been expected for a while
        self.identity = RedisIdentity(connection, keys)
        """Which server is at the other end, and whether it has lost anything."""
        self._task: asyncio.Task[None] | None = None
        connection.on_push = self._take
        connection.on_connect.append(self._listen_again)
        connection.on_lost.append(self._doubt_replies)

    def start(self) -> None:
        """Start looking for missed results, until `aclose`."""
        self._task = self._loop.create_task(self._sweep(), name="toolfleet-inbox")

    async def aclose(self) -> None:
        """Stop listening. Waiters for results are told; `listening` raises `NotPublished`."""
        if self._task is not None:
            await end([self._task])
        if self._check is not None:
            await self._check.aclose()
        await self._reader.aclose()
        if self._listen_again in self._connection.on_connect:
            self._connection.on_connect.remove(self._listen_again)
            self._connection.on_lost.remove(self._doubt_replies)
        expected, self._expected = self._expected, {}
        for first in expected.values():
            if first.listening is not None and not first.listening.done():
                first.listening.set_exception(NotPublished("the fleet was left"))
                first.listening.exception()  # seen: there may be no waiter
            for one in first.everyone:
                if one.waiter is not None:
                    one.waiter.left()

    def new_call_id(self) -> str:
        """Return an id that no other call has, and that names the reply channel; also the id of its task in Celery."""
        return randomness.uuid4_text()[:-REPLY_DIGITS] + self._name

    def expect(self, call_id: str, waiter: Waiter) -> Expected:
        """Listen for the end of a call.

        The answer to any command sent over the listener's own connection from now on is heard.

        Several may wait for one call: each of them hears.
        """
        channel, now = self._result_key + call_id.encode(), self._loop.time()
        expected = Expected(channel, waiter, now)
        first = self._expected.setdefault(channel, expected)
        if first is not expected:
            first.behind = [*(first.behind or ()), expected]
        elif now < self._has_replies_until and call_id.endswith(self._name):
            expected.has_channel, expected.is_heard = False, True
        else:
            self._subscriptions.subscribe(channel)
        self._used_at = now
        if self._rests:
            self._rests = False
            self._awake.set()
        return expected

    async def listening(self, call_id: str) -> None:
        """Wait until the answer to any command sent from now on, over any connection, is heard. Has no deadline."""
        first = self._expected.get(self._channel(call_id))
        if first is not None and not first.is_heard:  # a job's step has no waiter here
            first.listening = first.listening or self._loop.create_future()
            await asyncio.shield(first.listening)  # others may wait for it, too

    def waiters(self) -> Iterator[Waiter]:
        """Yield who waits for calls' ends."""
        everyone = (one for first in self._expected.values() for one in first.everyone)
        return (one.waiter for one in everyone if one.waiter is not None)

    def forget(self, expected: Expected) -> None:
        """Remove a waiter."""
        first = self._expected.get(expected.channel)
        if first is None or expected not in first.everyone:
            return
        expected.waiter = None
        first.behind = [one for one in first.behind or () if one is not expected]
        if first.waiter is None and not first.behind:
            self._drop(expected.channel)

    async def peek(self, key: bytes) -> bytes | None:
        """Return the present value of a key.

        Raises `OSError` or `ResponseError` if Redis does not answer in a second.
        """
        return await self._reader.peek(key)

    def found(self, call_id: str, stored: bytes | None) -> None:
        """Process a call's stored result as if it had just been announced."""
        self._on_message(self._channel(call_id), stored)

    def _channel(self, call_id: str) -> bytes:
        return self._result_key + call_id.encode()

    def _drop(self, channel: bytes) -> None:
        first = self._expected.pop(channel)
        if self._check is not None:
            self._check.forget(channel)
        if first.listening is not None:
            first.listening.cancel()
        if first.has_channel:
            self._subscriptions.unsubscribe(channel)

    def _listen_again(self) -> None:
        subscribed = [channel for channel, first in self._expected.items() if first.has_channel]
        # The first ones go as one command: who listens to some of them listens to all.
        self._subscriptions.subscribe_again([self._reply, self._repliers, *self._handlers, *subscribed, *self.watches])
        self._is_new = True
        self._awake.set()
        self.identity.connection_lost()

    def _doubt_replies(self) -> None:
        self._has_replies_until = float("-inf")

    def _take(self, frame: Push) -> None:
        kind = frame[0]
        if kind == b"message":
            channel, content = frame[1], frame[2]
            if channel == self._reply and content[: len(SIGNAL)] == SIGNAL:
                channel, content = self._progress_key + content[len(SIGNAL) :], SIGNAL
            if channel == self._reply or channel in self._expected:
                self._on_message(channel, content)
            elif channel in self.watches:
                self.watches.announced(channel, content)
            elif channel in self._handlers:
                self._handlers[channel]()
        elif kind == b"subscribe":
            self._on_subscribed(frame[1])

    def _on_subscribed(self, channel: bytes) -> None:
        first = self._expected.get(channel)
        if first is not None:
            first.is_heard = True
            if first.listening is not None and not first.listening.done():
                first.listening.set_result(None)
        elif channel in self.watches:
            self.watches.subscribed(channel)
        elif channel in self._handlers:
            self._handlers[channel]()

    def _found(self, key: bytes, content: bytes | None) -> None:
        if key in self.watches:
            self.watches.found(key, content)
        else:
            self._on_message(key, content)

    def _on_message(self, channel: bytes, content: bytes | None) -> None:
        """Process an announcement, or a stored result, of a call."""
        meta = _meta(content)
        if meta is not None and channel == self._reply:
            channel = self._result_key + str(meta.get("task_id")).encode(errors="replace")
        if channel not in self._expected or meta is None:
            return
        status = meta["status"]
        if status in _READY and (self._check is None or self._check.passes(channel, meta)):
            self._end(channel, meta)
        elif status == STORED:
            self._reader.fetch(channel)

    def _end(self, channel: bytes, meta: Meta) -> None:
        first = self._expected.get(channel)
        if first is None:
            return
        if first.listening is not None and not first.listening.done():
            first.listening.set_result(None)  # what there was to be heard has come before Redis said that we listen
        self._drop(channel)
        for expected in first.everyone if first.behind else (first,):
            waiter, expected.waiter = expected.waiter, None
            try:
                if waiter is not None:
                    waiter.ended(meta)
            except Exception:  # a defect of ours: an agent that hears no results any more would be worse
                log.exception("result_not_taken", channel=channel.decode())

    async def _sweep(self) -> None:
        """Read the results that may have been announced unheard: of all calls on a new connection, else of silent ones."""
        swept_at = self._loop.time()
        while is_wanted():
            self._rests = not self._expected and self._loop.time() > self._used_at + _ASK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS if self._rests else _ASK_SECONDS):
                    await self._awake.wait()
            self._awake.clear()
            if not self._connection.is_connected:
                continue
            now, is_new, self._is_new = self._loop.time(), self._is_new, False
            is_sweep = is_new or now >= swept_at + _SWEEP_SECONDS
            swept_at = now if is_sweep else swept_at
            try:
                is_first = is_new and not self.identity.is_known
                if is_new:
                    await self.identity.recognise()
                elif is_sweep:
                    await self.identity.recheck()
                if is_new or not self._rests:
                    await self._check_replies()
                if not is_first:  # nothing was published before
                    await self._reader.sweep(
                        self._silent_since(now if is_new else now - _SILENT_SECONDS, all_=is_sweep)
                    )
            except (RedisConnectionLost, ResponseError) as exc:
                log.warning("results_not_swept", error=str(exc))
            except Exception:  # a defect of ours: an agent that finds no lost results any more would be worse
                log.exception("results_not_swept")

    async def _check_replies(self) -> None:
        """Note until when all processes are known to announce ends on reply channels. Raises `RedisConnectionLost`."""
        asked_at, keys = self._loop.time(), self.keys
        lanes, listeners = [keys.slots(lane) for lane in ("fast", "slow")], keys.manifests_changed
        command = _REPLIES.command(lanes=lanes, listeners=listeners, repliers=self._repliers)
        try:
            do_all_reply = await self._connection.send(*command)
        except ResponseError:  # not for this user
            do_all_reply = False
        self._has_replies_until = asked_at + _REPLIES_COUNT_SECONDS if do_all_reply else float("-inf")

    def _silent_since(self, moment: float, *, all_: bool) -> list[bytes]:
        """Return the channels of calls that have been expected since then: `all_`, or those of the reply channel."""
        return [
            channel
            for channel, first in self._expected.items()
            if first.since <= moment and (all_ or not first.has_channel)
        ]


class ResultWaiters:
    """Waits for results at `listener`. `reader` has the results; it is closed here."""

    def __init__(self, listener: ResultListener, reader: ResultReader, *, keys: Keys) -> None:
        self._listener = listener
        self._reader = reader
        self._keys = keys

    async def aclose(self) -> None:
        """Close what was opened for reading."""
        await self._reader.aclose()

    async def of(self, call_id: str, *, seconds: float | None) -> Meta | None:
        """Return Celery's stored value of a call, once it has ended; `None` if it has not in `seconds`.

        Raises `NotPublished` if the fleet is left meanwhile.
        """
        waiter = _Waiter()
        expected = self._listener.expect(call_id, waiter)
        try:
            async with asyncio.timeout(seconds):
                await self._read(call_id)
                return await waiter.meta
        except TimeoutError:
            return None
        finally:
            self._listener.forget(expected)

    async def _read(self, call_id: str) -> None:
        """Read a result that may have been missed. An unreadable one is swept later."""
        try:
            await self._listener.listening(call_id)
            stored = await self._reader.peek(self._keys.result(call_id).encode())
        except (KeyError, OSError, ResponseError):  # KeyError: its end was heard meanwhile
            return
        self._listener.found(call_id, stored)


class _Waiter:
    def __init__(self) -> None:
        self.meta: asyncio.Future[Meta] = asyncio.get_running_loop().create_future()

    def ended(self, meta: Meta) -> None:
        if not self.meta.done():
            self.meta.set_result(meta)

    def left(self) -> None:
        if not self.meta.done():
            self.meta.set_exception(NotPublished("the fleet was left"))


def _meta(stored: bytes | None) -> Meta | None:
    """Parse Celery's value; `None` for anything else: a foreign message must not end the listening."""
    try:
        meta = from_json(stored or b"null")  # a fifth of the time of Python's own parser
    except ValueError:
        meta = _loads(stored)
    return meta if isinstance(meta, dict) and isinstance(meta.get("status"), str) else None


def _loads(stored: bytes | None) -> object:
    """Parse JSON that only Python's own parser accepts: a lone surrogate, say. `None` for invalid JSON."""
    try:
        return json.loads(stored or b"null")
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True, eq=False)
class _Watch:
    hear: Hear
    has_heard: bool = False  # an announcement, since the channel was subscribed to: what is read now may be older


class ChannelWatch:
    """The watched channels of a connection that has other uses, too.

    `read` has `found` called with the present value of a key.
    """

    def __init__(self, connection: PipelinedConnection, read: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._read = read
        self._watches: dict[bytes, list[_Watch]] = {}

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._watches)

    def __contains__(self, channel: bytes) -> bool:
        return channel in self._watches

    @contextlib.contextmanager
    def watching(self, channel: bytes, hear: Hear) -> Generator[None]:
        """Call `hear` with the key's value, if there is one, and then with each announcement; none is missed."""
        watch = _Watch(hear)
        watches = self._watches.setdefault(channel, [])
        watches.append(watch)
        if len(watches) == 1:
            self._connection.tell("SUBSCRIBE", channel)
        else:
            self._read(channel)
        try:
            yield
        finally:
            watches.remove(watch)
            if not watches:
                del self._watches[channel]
                self._connection.tell("UNSUBSCRIBE", channel)

    def subscribed(self, channel: bytes) -> None:
        """Read the key after a subscription: something may have been missed before."""
        for watch in self._watches[channel]:
            watch.has_heard = False
        self._read(channel)

    def announced(self, channel: bytes, content: bytes) -> None:
        """Call all listeners."""
        for watch in list(self._watches[channel]):
            watch.has_heard = True
            watch.hear(content)

    def found(self, channel: bytes, content: bytes | None) -> None:
        """Call the listeners that have heard nothing yet."""
        for watch in list(self._watches[channel]):
            if content is not None and not watch.has_heard:
                watch.hear(content)


class ChannelSubscriptions:
    """The subscriptions of one connection. `is_wanted`: whether a channel that was left in this tick has waiters."""

    def __init__(self, connection: PipelinedConnection, is_wanted: Callable[[bytes], bool]) -> None:
        self._connection = connection
        self._is_wanted = is_wanted
        self._joining: list[bytes] | None = None  # of a command that has not left
        self._leaving: list[bytes] = []

    def subscribe(self, channel: bytes) -> None:
        """Subscribe to a channel before the next command over the connection is answered.

        A command for each would have to be packed here and read there, for each call.
        """
        joining = self._joining
        if joining is None or len(joining) == _CHUNK:
            joining = self._joining = []
            self._connection.tell_built(functools.partial(self._close, joining))
        joining.append(channel)

    def unsubscribe(self, channel: bytes) -> None:
        """Unsubscribe from the channel soon."""
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self._leave)
        self._leaving.append(channel)

    def subscribe_again(self, channels: list[bytes]) -> None:
        """Subscribe to all of these over a new connection, before anything else is sent over that."""
        self._joining = None  # it was for the connection before
        for start in range(0, len(channels), _CHUNK):
            self._connection.tell("SUBSCRIBE", *channels[start : start + _CHUNK])

    def _close(self, joining: list[bytes]) -> tuple[Part, ...]:
        if self._joining is joining:
            self._joining = None
        return ("SUBSCRIBE", *joining)

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        if channels := [channel for channel in leaving if not self._is_wanted(channel)]:
            self._joining = None  # who comes back now must not be in a command that leaves before this one
            self._connection.tell("UNSUBSCRIBE", *channels)


async def follow_progress(
    listener: ResultListener, call_id: str, ending: "asyncio.Future[Any]"
) -> AsyncGenerator[Progress]:
    """Yield the call's progress, beginning with the latest, until `ending`. A slow reader misses steps."""
    arrived = asyncio.Event()
    latest: Progress | None = None

    def hear(content: bytes) -> None:
        nonlocal latest
        latest = _judged(listener.verifier, call_id, content) or latest
        arrived.set()

    def stop(_: object) -> None:
        arrived.set()

    ending.add_done_callback(stop)
    shown: Progress | None = None
    try:
        with listener.watches.watching(listener.keys.progress(call_id).encode(), hear):
            while not ending.done():
                await arrived.wait()
                arrived.clear()
                if latest is not None and latest != shown:
                    shown = latest
                    yield shown
    finally:
        ending.remove_done_callback(stop)


async def read_progress(verifier: Verifier, call_id: str, content: bytes | None) -> Progress | None:
    """Parse a worker's progress report of this call; `None` if there is none, or it is not genuine."""
    text, signature = split_json((content or b"").decode(errors="replace"))
    return _parsed(text) if text and await verifier.believes(call_id, "progress", text, signature) else None


def _judged(verifier: Verifier, call_id: str, content: bytes) -> Progress | None:
    """Judge a report at once. One that would need a lookup first is left out: the next one comes soon."""
    text, signature = split_json(content.decode(errors="replace"))
    verdict = verifier.judge(call_id, "progress", text, signature)
    if verdict == "unsure":
        verifier.check_workers_soon()
    elif verdict == "refused":
        verifier.refuse(call_id, "progress", is_signed=signature is not None)
    return _parsed(text) if verdict == "believed" else None


def _parsed(text: str) -> Progress | None:
    try:
        return Progress.model_validate_json(text)
    except ValidationError:
        return None


class HeardLog:
    """The log messages of one call that are of level `least` or above, kept as long as this object.

    Made before the call is published.
    """

    def __init__(self, listener: ResultListener, call_id: str, least: LogLevel) -> None:
        self._call_id = call_id
        self._least: LogLevel = least
        self._verifier = listener.verifier
        self._heard = list[bytes]()
        self._readers = set[asyncio.Event]()
        self._listening = contextlib.ExitStack()
        channel = listener.keys.progress(call_id, "-log").encode()
        self._listening.enter_context(listener.watches.watching(channel, self._hear))

    def close(self, _: object = None) -> None:
        """Stop listening."""
        self._listening.close()

    async def messages(self, ending: "asyncio.Future[Any]") -> AsyncGenerator[LogMessage]:
        """Yield all messages so far, and those to come until `ending`."""
        arrived, read = asyncio.Event(), 0

        def wake(_: object) -> None:
            arrived.set()

        self._readers.add(arrived)
        ending.add_done_callback(wake)
        try:
            while True:
                is_over = ending.done()
                while read < len(self._heard):
                    read += 1
                    if (message := await self._believed(self._heard[read - 1])) is not None:
                        yield message
                if is_over:
                    return
                await arrived.wait()
                arrived.clear()
        finally:
            self._readers.discard(arrived)
            ending.remove_done_callback(wake)

    def _hear(self, content: bytes) -> None:
        if len(self._heard) < _MOST_MESSAGES and len(content) <= _MOST_BYTES:
            self._heard.append(content)
            for reader in self._readers:
                reader.set()

    async def _believed(self, content: bytes) -> LogMessage | None:
        text, signature = split_json(content.decode(errors="replace"))
        if not text or not await self._verifier.believes(self._call_id, "log", text, signature):
            return None
        try:
            message = log_message_in(from_json(text))
        except ValueError:
            return None
        return message if message is not None and is_heard(message.level, self._least) else None
