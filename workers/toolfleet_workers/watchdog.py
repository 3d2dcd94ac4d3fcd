"""Says which code blocks the event loop, from a thread of its own."""

import sys
import threading
import time
import traceback
from typing import Protocol

import structlog

_LOOKS_PER_STALL = 10

log = structlog.get_logger(__name__)


class Watched(Protocol):
    """A loop that says when it ticks. Read from the watchdog's thread."""

    @property
    def busy_since(self) -> float | None:
        """The last tick, by `time.monotonic`; `None` while the loop waits for work."""
        ...

    @property
    def is_closed(self) -> bool:
        """There will be no more ticks."""
        ...


class Watchdog:
    """Logs `loop_stalled`, with the blocked thread's stack, once a stall, and `loop_recovered` after it.

    It watches the loop of the thread that makes it, until that loop is closed. Code that never gives up the
    interpreter's lock blocks the watchdog, too.
    """

    def __init__(self, loop: Watched, *, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._thread_id = threading.get_ident()
        self._stalled_since: float | None = None

    def start(self) -> None:
        """Watch from now on."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def look(self) -> None:
        """One look."""
        now, busy_since = time.monotonic(), self._loop.busy_since
        if self._stalled_since is not None and busy_since != self._stalled_since:
            log.warning("loop_recovered", seconds=round(now - self._stalled_since, 1))
            self._stalled_since = None
        if busy_since is not None and self._stalled_since is None and now - busy_since >= self._stall_seconds:
            self._stalled_since = busy_since
            log.error("loop_stalled", seconds=round(now - busy_since, 1), stack=self._stack())

    def _run(self) -> None:
        while not self._loop.is_closed:
            time.sleep(self._stall_seconds / _LOOKS_PER_STALL)
            self.look()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented, in spite of its name
        return "".join(traceback.format_stack(frame))
