"""Lets programs run: some at a time, or one on the whole machine where nothing keeps them apart."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from tempfile import gettempdir

_POLL_SECONDS = 0.05  # between two looks at whether another module's program has ended


class Turns:
    """As many turns at once as `at_once` says, or one on this machine at a time if programs run `alone`."""

    def __init__(self, at_once: int, *, alone: bool) -> None:
        self._alone = alone
        self._room = asyncio.Semaphore(1 if alone else at_once)

    @asynccontextmanager
    async def turn(self, patience_seconds: float) -> AsyncGenerator[int | None]:
        """Wait for a turn, and for its lock where programs run alone: a descriptor, and who else has it keeps the turn.

        Raises `TimeoutError` if there is none in time, and `OSError` where nothing can be locked.
        """
        async with asyncio.timeout(patience_seconds):
            await self._room.acquire()
            try:
                lock = await self._locked() if self._alone else None
            except BaseException:
                self._room.release()
                raise
        try:
            yield lock
        finally:
            if lock is not None:
                os.close(lock)
            self._room.release()

    async def _locked(self) -> int:
        """The folder itself is locked, in which programs have theirs: it needs no file that could be in the way."""
        folder = os.open(gettempdir(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            while not _is_ours(folder):  # noqa: ASYNC110 - the kernel tells nobody when a lock is free
                await asyncio.sleep(_POLL_SECONDS)
        except BaseException:  # cancelled, too
            os.close(folder)
            raise
        return folder


def _is_ours(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
