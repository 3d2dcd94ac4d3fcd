"""Takes SIGINT, SIGTERM and SIGHUP as a request to end in good order, and a second one as loss of patience."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(KeyboardInterrupt):
    """A signal asks us to end. As for Ctrl-C, no `except Exception` stops it."""


class StopSignals:
    """The signals received so far.

    Raises from within the handler only where `interrupts` allows it: raised at any other moment, it could lose track of
    a child that was just started.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._may_raise = False

    @property
    def in_hurry(self) -> bool:
        """Whether we were asked more than once."""
        return self._asked > 1

    def check(self) -> None:
        """Raise `StopRequested` if we were asked to end."""
        if self._asked:
            raise StopRequested

    @contextmanager
    def interrupts(self) -> Generator[None]:
        """Raise `StopRequested` inside as soon as we are asked."""
        self.check()
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    @contextmanager
    def held(self) -> Generator[None]:
        """Suspend `interrupts` inside; a request is raised at the end."""
        before, self._may_raise = self._may_raise, False
        try:
            yield
        finally:
            self._may_raise = before
        if before:
            self.check()

    def take(self, _signum: int, _frame: FrameType | None) -> None:
        """Note a request, and raise where that is allowed. Called as the handler of the signals.

        In an event loop it is raised between two tasks: a task that it struck would be reported as failed.
        """
        self._asked += 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._interrupt()
        else:
            loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._may_raise:
            raise StopRequested


@contextmanager
def stop_signals() -> Generator[StopSignals]:
    """Take the signals over, and give them back at the end. Main thread only."""
    signals = StopSignals()
    # Under `nohup` it is the terminal's end that must not end us.
    taken = [signum for signum in _SIGNALS if (signum, signal.getsignal(signum)) != (signal.SIGHUP, signal.SIG_IGN)]
    before = {signum: signal.signal(signum, signals.take) for signum in taken}
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
