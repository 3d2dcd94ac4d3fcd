"""Joins a call to an earlier one with the same idempotency key, whose result it returns.

Such a call shares the other's result and nothing else. Its own deadline, and its cancellation, end only its waiting:
the first caller still wants the result.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import ErrorCode, PublishedCall, ToolResult
from toolfleet_registry.contracts.call_context import LogMessage, Progress
from toolfleet_registry.contracts.calls import UNSPOKEN, Spoken
from toolfleet_registry.errors import NotPublished
from toolfleet_registry.policy.hints import SAME_KEY_ONLY
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.calls.pending_call import DONE, CallStatus, PendingCall, audited
from toolfleet_tasks.results.listener import ResultListener
from toolfleet_tasks.results.verifier import ResultReader

_STILL = "The first call with its idempotency key is under way."


class Joined:
    """A call that waits for the end of another one, `call_id`, until its own deadline."""

    def __init__(self, call: PublishedCall, call_id: str) -> None:
        loop = asyncio.get_running_loop()
        self.call_id = call_id
        self.tool_name = call.tool_name
        self.ending: asyncio.Future[ToolResult] = loop.create_future()
        self.source: PendingCall | None = None
        """Who hears of the other's end."""
        self.may_wait = False
        """Whether the other may still wait for people."""
        self._call = call
        text = "Tool call was not answered by its deadline."
        timer = loop.call_later(call.deadline_at - fleet_clock.now(), self.leave, "timed_out", text)
        self.ending.add_done_callback(lambda _: timer.cancel())

    def end(self, result: ToolResult) -> None:
        """End the call with this result, unless it has ended."""
        if not self.ending.done():
            self.ending.set_result(audited(self.call_id, result))

    def leave(self, code: ErrorCode, text: str) -> None:
        """End the waiting only.

        Whether a repeat could do anything twice is up to the tool: its key may not be known here.
        """
        is_harmless = self._call.effect in {"read", "idempotent"}
        result = ToolResult.failed(
            self.tool_name, code, f"{text} {_STILL}", effect_state="unknown", retryable=is_harmless
        )
        self.end(result if is_harmless else result.model_copy(update={"hint": SAME_KEY_ONLY}))

    def give_up(self) -> None:
        """End the waiting: the caller has gone."""
        self.ending.cancel()


class JoinedHandle(CallHandle):
    """A handle on a joined call. Its id is that of the first call, which cancelling it does not cancel."""

    def __init__(self, joined: Joined, *, spoken: Spoken = UNSPOKEN) -> None:
        super().__init__(joined.call_id, joined.tool_name, joined.ending, spoken=spoken)
        self._joined = joined

    async def cancel(self) -> None:
        """Stop waiting: the result says `cancelled`, and that the first call continues."""
        self._joined.leave("cancelled", "Tool call was cancelled.")

    async def status(self) -> CallStatus:
        """Return the first call's present state."""
        source = self._joined.source
        return DONE if source is None or self._joined.ending.done() else await source.status()

    @property
    def _followed(self) -> PendingCall | None:
        return self._joined.source

    async def progress(self) -> AsyncGenerator[Progress]:
        """Yield the first call's progress, until it ends or the waiting for it does."""
        if (source := self._joined.source) is not None:
            async with contextlib.aclosing(source.progress(self._joined.ending)) as steps:
                async for progress in steps:
                    yield progress

    async def log(self) -> AsyncGenerator[LogMessage]:
        """Yield the first call's log messages, if anything listens to them, until it ends or the waiting for it does."""
        if (source := self._joined.source) is not None:
            async with contextlib.aclosing(source.log(self._joined.ending)) as messages:
                async for message in messages:
                    yield message


def handle_of(follow: PendingCall | Joined | ToolResult, spoken: Spoken = UNSPOKEN) -> CallHandle:
    """Return the handle of a call that is under way, or that has its result already; `spoken` is the form the model used."""
    if isinstance(follow, Joined):
        return JoinedHandle(follow, spoken=spoken)
    if isinstance(follow, ToolResult):
        ending: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        ending.set_result(follow)
        return CallHandle(follow.audit.call_id, follow.tool_name, ending, spoken=spoken)
    return CallHandle(follow.call_id, follow.tool_name, follow.ending, follow, spoken=spoken)


async def end_of(follow: PendingCall | Joined | ToolResult) -> ToolResult:
    """Wait for the call's result; if the waiting task is cancelled, the call is cancelled."""
    if isinstance(follow, ToolResult):
        return follow
    try:
        return await follow.ending
    except asyncio.CancelledError:
        follow.give_up()
        raise


class KeyedCalls:
    """The calls of one agent that can be joined, and those that have joined others, also of other agents.

    `follow` follows a call, as a guest, that another process has published. `reader` has the results; it is closed
    here. `spawn` runs something in the background; `read` confirms that a call no longer waits for another one's
    result.
    """

    def __init__(
        self,
        listener: ResultListener,
        reader: ResultReader,
        *,
        keys: Keys,
        follow: Callable[[PublishedCall], PendingCall],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        read: Callable[[PublishedCall, str], None],
    ) -> None:
        self._listener = listener
        self._reader = reader
        self._keys = keys
        self._follow = follow
        self._spawn = spawn
        self._read = read
        self._own: dict[str, PendingCall] = {}  # by call id: published here, with an idempotency key
        self._guests: dict[str, PendingCall] = {}  # by call id: published elsewhere, or given up here
        self._waiting: dict[str, set[Joined]] = {}  # by call id

    async def aclose(self) -> None:
        """Close what was opened for reading."""
        await self._reader.aclose()

    def offer(self, follow: PendingCall) -> None:
        """Let other calls join a call that is about to be published here with an idempotency key.

        Who has joined it at an earlier try, which has failed, has the end of this one.
        """
        earlier = self._own.get(follow.call_id)
        self._own[follow.call_id] = follow
        follow.ending.add_done_callback(lambda _: self._own.pop(follow.call_id, None))
        if earlier is not None:
            follow.ending.add_done_callback(functools.partial(_pass_on, earlier.ending))

    def take_back(self, call: PublishedCall, result: ToolResult) -> None:
        """End what has joined a call that is not published after all, and not tried again: with that call's result."""
        follow = self._own.pop(call.call_id, None)
        if follow is not None and not follow.ending.done():
            follow.ending.set_result(audited(call.call_id, result))

    def give_up(self, call: PublishedCall) -> None:
        """End a call whose caller has gone before a retry.

        Calls that joined it listen for its end, until their own deadlines.
        """
        follow = self._own.pop(call.call_id, None)
        if follow is not None:
            follow.ending.cancel()

    def join(self, call: PublishedCall, call_id: str) -> Joined:
        """Have `call`, which is not published, end as the call `call_id` that its idempotency key stands for."""
        joined = Joined(call, call_id)
        self._waiting.setdefault(call_id, set()).add(joined)
        joined.ending.add_done_callback(lambda _: self._leave(joined, call))
        self._attach(joined, call.model_copy(update={"call_id": call_id}))
        return joined

    def _attach(self, joined: Joined, other: PublishedCall) -> None:
        source = self._own.get(other.call_id) or self._guests.get(other.call_id)
        if source is None or source.ending.done():
            source = self._invite(other)
        joined.source = source
        source.ending.add_done_callback(lambda ending: self._ended(joined, other, ending))

    def _invite(self, other: PublishedCall) -> PendingCall:
        guest = self._guests[other.call_id] = self._follow(other)
        self._spawn(self._poll(guest))
        return guest

    def _ended(self, joined: Joined, other: PublishedCall, ending: "asyncio.Future[ToolResult]") -> None:
        if joined.ending.done():
            return
        if ending.cancelled():  # its caller here has gone, and its end is still to come
            self._attach(joined, other)
        else:
            joined.end(ending.result())

    async def _poll(self, guest: PendingCall) -> None:
        """Find the end of a call that ended before this process listened. An unreadable one is swept later."""
        try:
            await self._listener.listening(guest.call_id)
            stored = await self._reader.peek(self._keys.result(guest.call_id).encode())
        except (KeyError, NotPublished, OSError, ResponseError):  # KeyError: its end was heard meanwhile
            return
        self._listener.found(guest.call_id, stored)

    def _leave(self, joined: Joined, call: PublishedCall) -> None:
        self._read(call, joined.call_id)
        waiting = self._waiting[joined.call_id]
        waiting.discard(joined)
        if waiting:
            return
        del self._waiting[joined.call_id]
        guest = self._guests.pop(joined.call_id, None)
        if guest is not None:
            guest.give_up()


def _pass_on(earlier: "asyncio.Future[ToolResult]", ending: "asyncio.Future[ToolResult]") -> None:
    if earlier.done():
        return
    if ending.cancelled():
        earlier.cancel()
    else:
        earlier.set_result(ending.result())
