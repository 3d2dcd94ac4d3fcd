"""A fleet's session in a worker: one for its loop, opened with its first use, or one for a single use. It has no agent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.redis import worker_connections
from toolfleet_tasks.redis.worker_connections import Lines


@asynccontextmanager
async def worker_session(settings: Settings) -> AsyncGenerator[Session]:
    """The session of this worker's loop; under a pool without a loop, one for this use. Raises `FleetUnavailable`."""
    here = worker_connections.current()
    if here is not None:
        yield await _session_of(here, settings)
        return
    session = Session(settings, has_agent=False)
    await session.open()
    try:
        yield session
    finally:
        await session.aclose()


async def _session_of(here: Lines, settings: Settings) -> Session:
    opening = _sessions.get(here)
    if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
        opening = _sessions[here] = here.loop.create_task(_opened(here, settings), name="toolfleet-worker-session")
    return await asyncio.shield(opening)  # others may wait for it, too


async def _opened(here: Lines, settings: Settings) -> Session:
    session = Session(settings, has_agent=False)
    await session.open()
    here.settle.append(session.aclose)
    return session


_sessions: WeakKeyDictionary[Lines, "asyncio.Task[Session]"] = WeakKeyDictionary()
