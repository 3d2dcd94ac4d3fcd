"""Gives calls a session with an MCP server: one for all, which is restarted when it ends, or one for each user."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from toolfleet_modules.hosts.child_process import Backoff
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway, refused_call
from toolfleet_registry.functions.failures import ModuleBusy, ToolError
from toolfleet_registry.system import randomness

_log = logging.getLogger("toolfleet.host")

RETURN_SECONDS = 1.0
"""Until a server may be there again."""

_REOPEN_SECONDS = 10.0  # that a call waits for another session, where its server knows the old one no more

Connect = Callable[[], Awaitable[McpSession]]
"""Makes a session. Raises `ServerAway`."""

Began = Callable[[McpSession], Awaitable[None]]
Failed = Callable[[str], Awaitable[None]]


class SharedSession:
    """One session, as long as the host runs. `began` runs with each one while it lasts, `failed` is called with the reason where there is none."""

    def __init__(self, name: str, connect: Connect, began: Began, failed: Failed) -> None:
        self.connection: McpSession | None = None
        self._refusal: str | None = None
        self._name, self._connect, self._began, self._failed = name, connect, began, failed
        self._attempt = asyncio.Event()  # set when it was tried to make the next session
        self._retired: list[McpSession] = []
        self._supervising = asyncio.ensure_future(self._supervise())

    @asynccontextmanager
    async def taken(self, user_id: str | None) -> AsyncGenerator[McpSession]:
        """Give the present session, to any user.

        Raises `ModuleBusy` if there is none, and `ToolError` if there will be none.
        """
        del user_id
        attempt, connection = self._attempt, self.connection
        if connection is not None and not await connection.is_well() and connection.is_retired:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(attempt.wait(), _REOPEN_SECONDS)
            connection = self.connection
        if connection is None or not connection.is_usable:
            raise ModuleBusy(RETURN_SECONDS) if self._refusal is None else refused_call(self._refusal)
        yield connection

    async def aclose(self) -> None:
        """End it."""
        self._supervising.cancel()
        await asyncio.gather(self._supervising, return_exceptions=True)
        if self.connection is not None:
            await self.connection.aclose()
        await asyncio.gather(*(each.aclose() for each in self._retired))

    async def _supervise(self) -> None:
        """Have one session; when it ends, make another, after a pause that grows."""
        backoff = Backoff(0.1, 30.0, lasting_seconds=60.0)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            connection = None
            try:
                connection = self.connection = await self._connect()
                self._refusal = None
            except ServerAway as exc:
                self._refusal = str(exc) if exc.is_refused else None
                await self._failed(str(exc))
            self._attempt.set()
            self._attempt = asyncio.Event()
            if connection is not None:
                await self._lasting(connection)
                self._retired = _running(self._retired, connection)
                _log.warning("%s lost its server; it is restarted, or connected again.", self._name)
            pause = backoff.pause(loop.time() - began)
            await asyncio.sleep(pause * randomness.uniform(0.5, 1))  # not all that fail together start together

    async def _lasting(self, connection: McpSession) -> None:
        """Return when the session takes no more calls."""
        beginning = asyncio.ensure_future(self._began(connection))
        try:
            await connection.over.wait()
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)


@dataclass(slots=True, eq=False)
class _UserSession:
    """`users` counts those who use it or wait for it."""

    starting: "asyncio.Task[McpSession]"
    users: int = 0
    idle_at: float = field(default=0.0)

    @property
    def is_usable(self) -> bool:
        if not self.starting.done():
            return True
        if self.starting.cancelled() or self.starting.exception() is not None:
            return False
        connection = self.starting.result()
        return connection.is_open and not connection.over.is_set()


class UserSessions:
    """A session for each user, at most `most` at once. One that is unused for `idle_seconds` ends."""

    def __init__(self, connect: Connect, *, most: int, idle_seconds: float) -> None:
        self._connect, self._most, self._idle_seconds = connect, most, idle_seconds
        self._sessions: dict[str, _UserSession] = {}
        self._ending = set[asyncio.Task[None]]()
        self._retired: list[McpSession] = []
        self._sweeping = asyncio.ensure_future(self._sweep())

    @asynccontextmanager
    async def taken(self, user_id: str | None) -> AsyncGenerator[McpSession]:
        """Give the session of a user, which is made if there is none. Raises `ModuleBusy` and `ToolError`."""
        if not user_id:
            raise ToolError(
                "Each user has a session of its own with this server, and the call says no user id.",
                effect_state="none",
            )
        async with self._used(user_id) as connection:
            if await connection.is_well():
                yield connection
                return
        if not connection.is_retired:
            raise ModuleBusy(RETURN_SECONDS)
        async with self._used(user_id) as connection:  # another one: its server knows the first no more
            if not connection.is_usable:
                raise ModuleBusy(RETURN_SECONDS)
            yield connection

    async def aclose(self) -> None:
        """End all."""
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        for user_id in list(self._sessions):
            self._end(user_id)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.gather(*(each.aclose() for each in self._retired))

    @asynccontextmanager
    async def _used(self, user_id: str) -> AsyncGenerator[McpSession]:
        """Give the session of a user, and keep it meanwhile. Raises `ModuleBusy` and `ToolError`."""
        session = self._session_of(user_id)
        session.users += 1
        try:
            try:
                connection = await asyncio.shield(session.starting)
            except ServerAway as exc:
                _log.error("There is no session for a user: %s.", exc)
                raise (refused_call(str(exc)) if exc.is_refused else ModuleBusy(RETURN_SECONDS)) from None
            yield connection
        finally:
            session.users -= 1
            session.idle_at = asyncio.get_running_loop().time()

    def _session_of(self, user_id: str) -> _UserSession:
        known = self._sessions.get(user_id)
        if known is not None:
            if known.is_usable:
                return known
            self._end(user_id)
        if len(self._sessions) >= self._most:
            self._make_place()
        starting = asyncio.ensure_future(self._connect())
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # the waiters see it
        session = self._sessions[user_id] = _UserSession(starting)
        return session

    def _make_place(self) -> None:
        """End the session that has been idle for longest. Raises `ModuleBusy` if all are in use."""
        idle = [(each.idle_at, user_id) for user_id, each in self._sessions.items() if not each.users]
        if not idle:
            raise ModuleBusy(RETURN_SECONDS)
        self._end(min(idle)[1])

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._idle_seconds / 4, 5.0))
            before = loop.time() - self._idle_seconds
            for user_id, each in list(self._sessions.items()):
                if not each.users and (each.idle_at <= before or not each.is_usable):
                    self._end(user_id)

    def _end(self, user_id: str) -> None:
        task = asyncio.ensure_future(self._closed(self._sessions.pop(user_id).starting))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _closed(self, starting: "asyncio.Task[McpSession]") -> None:
        with contextlib.suppress(ServerAway):
            connection = await starting
            if connection.is_retired:
                self._retired = _running(self._retired, connection)
            else:
                await connection.aclose()


McpSessions: TypeAlias = SharedSession | UserSessions
"""Gives calls their session."""


def _running(retired: list[McpSession], other: McpSession) -> list[McpSession]:
    """Return the sessions that take no more calls, as far as calls still run in them."""
    return [each for each in (*retired, other) if not each.closed.is_set()]
