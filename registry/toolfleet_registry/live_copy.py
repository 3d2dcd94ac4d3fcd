"""Keeps this process's copy of something that is stored elsewhere up to date, and says how old it is."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import Context

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger

PAUSE_SECONDS = 0.2
"""After a store has not answered, before a caller of `confirm` has it asked again."""

EARLY_SECONDS = 0.002
"""By which uvloop's timers may be early."""

_log = get_logger(__name__)


class LiveCopy:
    """The copy that one event loop has of something stored elsewhere. `read` brings it up to date.

    There is one reading at a time, for all callers. While the store does not answer, the copy stays as it is: `read` raises
    `FleetUnavailable`, which is logged as `event` once, until the store answers again; so is a defect, with its traceback.
    """

    def __init__(self, read: Callable[[], Awaitable[object]], *, event: str) -> None:
        self._read, self._event = read, event
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[bool] | None = None
        self._confirmed_at = self._failed_at = self._failed_since = -math.inf
        self._changes = 0
        self._is_closed = False
        self.is_away = False
        """Whether the last reading failed."""
        self._has_defect = False  # of the readings since the last answer

    @property
    def age_seconds(self) -> float:
        """The seconds since the last reading with an answer began; `inf` if there was none."""
        return fleet_clock.suspend_aware() - self._confirmed_at

    @property
    def is_reading(self) -> bool:
        """Whether a reading is under way in the background."""
        return self._reading is not None and not self._reading.done()

    async def refresh(self) -> bool:
        """Read now, in this task. Returns whether the store answered; raises nothing."""
        async with self._turn:
            began, changes = fleet_clock.suspend_aware(), self._changes
            try:
                await self._read()
            except Exception as exc:  # noqa: BLE001 - a process that hears of nothing any more would be worse than a defect
                self._fail(exc, began)
                return False
            self.is_away = self._has_defect = False
            if changes == self._changes:  # else it may be what was before the change
                self._confirmed_at = began
            return True

    async def keep(self, every_seconds: float) -> None:
        """Read again and again, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(every_seconds)

    async def confirm(
        self, fresh_seconds: float, *, patience_seconds: float, good_seconds: float = 0, short_seconds: float = 0
    ) -> bool:
        """Wait until the copy is at most `fresh_seconds` old, or was read after this call began. Returns whether it is.

        Where the store does not answer within `patience_seconds`, a copy of at most `good_seconds` will do too; with such a
        copy the wait is `short_seconds` at most.
        """
        began = fleet_clock.suspend_aware()
        while not self._is_confirmed(began, fresh_seconds):
            now = fleet_clock.suspend_aware()
            is_good = now - self._confirmed_at <= good_seconds
            left = began + (short_seconds if is_good else patience_seconds) - now
            pause = self._failed_at + PAUSE_SECONDS - now
            if self._is_closed or left <= 0 or (pause > 0 and (is_good or self._failed_since >= began)):
                break
            if pause > 0:  # the store may be back: no caller is refused by an answer from before it came
                await asyncio.sleep(min(pause, left) + EARLY_SECONDS)
            else:
                self.begin()
                await self.wait(left)
        return self._is_confirmed(began, max(fresh_seconds, good_seconds))

    def begin(self) -> None:
        """Start a reading in the background, unless one is under way, or the copy is closed."""
        if not (self._is_closed or self.is_reading):
            # In a context of its own: what it logs is not about the caller that happened to ask.
            self._reading = asyncio.create_task(self.refresh(), name="toolfleet-live-copy", context=Context())

    async def wait(self, seconds: float) -> None:
        """Wait for the reading that was started last. Neither the timeout nor the caller's cancellation ends it: others may wait, too."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=seconds)

    def outdate(self) -> None:
        """Have the next caller wait for a reading that begins after now: this process has changed what is stored."""
        self._changes += 1
        self._confirmed_at = -math.inf

    async def aclose(self) -> None:
        """Cancel a reading that is under way, and begin no other one."""
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def _is_confirmed(self, since: float, seconds: float) -> bool:
        """Return whether a reading after `since`, however long it took, or within the last `seconds` had an answer."""
        return self._confirmed_at >= since or self.age_seconds <= seconds

    def _fail(self, error: Exception, began: float) -> None:
        self._failed_at, self._failed_since = fleet_clock.suspend_aware(), began
        text, is_defect = str(error) or repr(error), not isinstance(error, FleetUnavailable)
        if is_defect and not self._has_defect:
            _log.error(self._event, error=text, exc_info=error)
        elif not self.is_away:
            _log.warning(self._event, error=text)
        self.is_away, self._has_defect = True, self._has_defect or is_defect
