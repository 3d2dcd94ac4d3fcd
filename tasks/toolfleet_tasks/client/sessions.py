"""Gives each event loop and each forked process a session of its own of one fleet."""

import asyncio
import threading

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolResult
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import fork_safety
from toolfleet_tasks.calls.audit_trail import refused_without_redis
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances, EvalGate
from toolfleet_tasks.calls.idempotency import Joined
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.calls.prepare import check_timeout
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.messages import fleet_results

_CLOSE_SECONDS = 10.0  # for another loop to close its session


class Sessions:
    """The sessions of one fleet: opened on a loop's first use of it, closed together when the fleet is left."""

    def __init__(self, settings: Settings, gate: EvalGate | None = None, *, is_shared: bool = False) -> None:
        self._settings, self._is_shared = settings, is_shared
        self._gate = gate
        self._lock = threading.Lock()  # for the moments in which the fields below change; never held across a wait
        self._open: dict[asyncio.AbstractEventLoop, Session] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Session]] = {}
        self._entered = 0
        self._is_usable = False
        fork_safety.tell(self.forked)

    async def enter(self) -> None:
        """Open the session of the running loop. Raises what `Session.open` does."""
        with self._lock:
            was_usable, self._is_usable = self._is_usable, True
            self._entered += 1
        try:
            await self.opened()
        except BaseException:
            with self._lock:
                self._entered -= 1
                self._is_usable = was_usable
            raise

    async def leave(self) -> None:
        """Close all sessions, if no other code has entered. Bounded in time, whatever other loops do."""
        with self._lock:
            if not self._is_usable:  # it was left already
                return
            self._entered -= 1
            if self._entered > 0:
                return
            self._entered, self._is_usable = 0, False
            sessions, self._open = self._open, {}
        here = sessions.pop(asyncio.get_running_loop(), None)
        await asyncio.gather(*(_close_elsewhere(session) for session in sessions.values()))
        if here is not None:
            await here.aclose()

    def here(self) -> Session | None:
        """The session of the running loop, if it is open. Raises `RuntimeError` if the fleet was not entered."""
        if not self._is_usable:
            raise RuntimeError(
                "This fleet is not open: use it inside `async with ToolFleet() as fleet:`, or between `open()` and `close()`."
            )
        return self._open.get(asyncio.get_running_loop())

    async def opened(self) -> Session:
        """The session of the running loop, opened if it is not. Raises what `Session.open` does."""
        if (session := self.here()) is not None:
            return session
        loop = asyncio.get_running_loop()
        with self._lock:
            self._drop_dead()
            opening = self._opening.get(loop)
            if opening is None:
                opening = self._opening[loop] = loop.create_task(self._open_on(loop), name="toolfleet-open")
                opening.add_done_callback(_seen)
        return await asyncio.shield(opening)  # others may wait for it, too

    async def begin(
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        seconds: float | None,
        *,
        waits: bool,
        waits_for_worker: bool = False,
        around: Circumstances = NOTHING_MORE,
    ) -> PendingCall | Joined | ToolResult:
        """Begin a call as `Session.begin` does, on the running loop's session, which is opened with the first call, within the call's time."""
        check_timeout(seconds)
        session = self.here()
        if session is None:
            clock = asyncio.get_running_loop().time
            began_at = clock()
            try:
                async with asyncio.timeout(seconds):
                    session = await self.opened()
            except (FleetUnavailable, TimeoutError) as exc:
                reason = str(exc) or "Redis does not answer"
                result = fleet_results.fleet_unavailable(call.tool_name, reason)
                return refused_without_redis(self._settings, call, caller, result)
            seconds = None if seconds is None else seconds - (clock() - began_at)
        asked = call, caller, conversation, seconds
        return await session.begin(*asked, waits=waits, waits_for_worker=waits_for_worker, around=around)

    def forked(self) -> None:
        """Forget the copies, which are the parent's: this process opens its own."""
        for session in self._open.values():
            session.forked()
        fork_safety.leave_behind(self._opening)
        self._lock, self._open, self._opening, self._entered = threading.Lock(), {}, {}, 0

    async def _open_on(self, loop: asyncio.AbstractEventLoop) -> Session:
        try:
            session = Session(self._settings, self._gate, is_shared=self._is_shared)
            await session.open()
            with self._lock:
                if is_usable := self._is_usable:
                    self._open[loop] = session
            if not is_usable:
                await session.aclose()
                raise RuntimeError("This fleet was left while it was being opened.")
            return session
        finally:
            with self._lock:
                self._opening.pop(loop, None)

    def _drop_dead(self) -> None:
        """Forget the sessions of loops that were closed."""
        for loop in [loop for loop in self._open if loop.is_closed()]:
            self._open.pop(loop).abandon()
        for loop in [loop for loop in self._opening if loop.is_closed()]:
            if not (opening := self._opening.pop(loop)).done():
                fork_safety.leave_behind(opening)


async def _close_elsewhere(session: Session) -> None:
    if session.loop.is_running():
        closing = session.aclose()
        try:
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, session.loop))
        except RuntimeError:  # it was closed just now
            closing.close()
        else:
            await asyncio.wait([future], timeout=_CLOSE_SECONDS)
            if future.done() and not future.cancelled() and future.exception() is None:
                return
            future.cancel()  # the loop has ended meanwhile, or is stuck
    session.abandon()


def _seen(opening: "asyncio.Task[Session]") -> None:
    if not opening.cancelled():
        opening.exception()
