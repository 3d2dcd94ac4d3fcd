"""Sends the latest progress of each call to the host, a few times a second, however often a tool reports it."""

import asyncio
import contextlib
from collections.abc import Callable

from toolfleet_modules.hosts.processes.frames import Head
from toolfleet_registry.contracts.progress import Progress

_PAUSE_SECONDS = 0.05


class ProgressSender:
    """In the running loop; `take` may be called from any thread."""

    def __init__(self, send: Callable[[Head], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._latest: dict[int, Progress] = {}
        self._is_waiting = False

    def take(self, number: int, progress: Progress) -> None:
        """Keep the latest of a call, for the next time that there is something to send."""
        self._latest[number] = progress
        if not self._is_waiting:
            self._is_waiting = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and a thread has not noticed
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        latest, self._latest = self._latest, {}
        for number, each in list(latest.items()):
            self._send({"kind": "progress", "id": number, "fraction": each.fraction, "message": each.message})
        if latest:
            self._loop.call_later(_PAUSE_SECONDS, self._tell)
        else:
            self._is_waiting = False
