"""Opens a fleet's session in a worker: one for its loop, with its first use, or one for a single use. It has no agent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.worker_runtime import WorkerRuntime


@asynccontextmanager
async def worker_session(settings: Settings) -> AsyncGenerator[Session]:
    """The session of this worker's loop; under a pool without a loop, one for this use. Raises `FleetUnavailable`."""
    here = worker_runtime.current()
    if here is not None:
        yield await here.part(_SharedSession, settings).opened()
        return
    session = Session(settings, has_agent=False)
    await session.open()
    try:
        yield session
    finally:
        await session.aclose()


class _SharedSession:
    """Opens the session of a worker's loop once, and again after a failure."""

    def __init__(self, here: WorkerRuntime, settings: Settings) -> None:
        self._here, self._settings = here, settings
        self._opening: asyncio.Task[Session] | None = None

    async def opened(self) -> Session:
        """Return the open session. Raises `FleetUnavailable`."""
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening = self._here.loop.create_task(self._open(), name="toolfleet-worker-session")
        return await asyncio.shield(opening)  # others may wait for it, too

    async def _open(self) -> Session:
        session = Session(self._settings, has_agent=False)
        await session.open()
        self._here.settle.append(session.aclose)
        return session
