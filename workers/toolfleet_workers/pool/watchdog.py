"""Says which code blocks the event loop: from a thread of its own, and at a signal when that code keeps the interpreter's lock."""

import faulthandler
import signal
import sys
import threading
import time
import traceback
from typing import Protocol

from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock

_CHECKS_PER_STALL = 10

log = get_logger(__name__)


class Watched(Protocol):
    """A loop that says when it ticks. Read from the watchdog's thread."""

    @property
    def busy_since(self) -> float | None:
        """The last tick, by `machine_clock.monotonic`; `None` while the loop waits for work."""
        ...

    @property
    def is_closed(self) -> bool:
        """There will be no more ticks."""
        ...

    @property
    def current_task(self) -> str | None:
        """The name of the task that runs now, a call's id if it is one; `None` between tasks."""
        ...


class Watchdog:
    """Logs `loop_stalled`, with the blocked thread's stack and its call, once a stall, and `loop_recovered` after it.

    It watches the loop of the thread that makes it, until that loop is closed. Code in C that keeps the interpreter's lock blocks
    the watchdog, too: then the blocked thread's traceback goes to the standard error while it lasts, at SIGALRM, and `loop_stalled`,
    with `keeps_interpreter`, as soon as it gives the lock up. The thread shows its own stack: to look at another one's while it
    runs, as after a pause of the whole process, may crash it.
    """

    def __init__(self, loop: Watched, *, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._pause_seconds = stall_seconds / _CHECKS_PER_STALL
        self._thread_id = threading.get_ident()
        self._stalled_since: float | None = None
        self._checked_at = machine_clock.monotonic()

    def start(self) -> None:
        """Watch from now on. To be called from the main thread, where the signal arrives."""
        if sys.__stderr__ is not None:  # not Celery's, which is the log
            faulthandler.register(signal.SIGALRM, file=sys.__stderr__, all_threads=False)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def read(self) -> None:
        """One look."""
        now, busy_since = machine_clock.monotonic(), self._loop.busy_since
        silent, self._checked_at = now - self._checked_at, now
        if self._stalled_since is not None and busy_since != self._stalled_since:
            log.warning("loop_recovered", seconds=round(now - self._stalled_since, 1))
            self._stalled_since = None
        if busy_since is not None and self._stalled_since is None and now - busy_since >= self._stall_seconds:
            self._stalled_since = busy_since
            log.error(
                "loop_stalled",
                seconds=round(now - busy_since, 1),
                call_id=self._loop.current_task,
                keeps_interpreter=silent >= self._stall_seconds,
                stack=self._stack(),
            )

    def _run(self) -> None:
        try:
            while not self._loop.is_closed:
                self._expect_next_check()
                time.sleep(self._pause_seconds)
                self.read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _expect_next_check(self) -> None:
        """Have the stack shown without the lock, unless we come back here before that."""
        if sys.__stderr__ is not None:
            signal.setitimer(signal.ITIMER_REAL, self._stall_seconds + self._pause_seconds)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented, in spite of its name
        return "".join(traceback.format_stack(frame))
