"""Beat's scheduler, which knows whether its loop turns, and answers probes."""

import time
from typing import Any

from celery.beat import Scheduler
from celery.signals import beat_init

from toolfleet_tasks.probes import STILL_SECONDS, Probes

ROLE = "beat"


class FleetScheduler(Scheduler):  # type: ignore[misc] # Celery ships no types
    """Celery's, which keeps its schedule in memory. The app has `settings`."""

    probes: Probes | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._rests_until = time.monotonic()
        self._waits_for_broker = False
        super().__init__(*args, **options)

    def tick(self, *args: Any, **options: Any) -> float:
        """As Celery's: seconds until the next one."""
        delay: float = super().tick(*args, **options)
        self._rests_until = time.monotonic() + (delay or 0)
        return delay

    def close(self) -> None:
        """As Celery's, at the end."""
        super().close()
        if self.probes is not None:
            self.probes.leave()

    def stuck(self) -> str | None:
        """Why it is not alive. To wait for a broker that is away is its work."""
        late = time.monotonic() - self._rests_until
        if self._waits_for_broker or late < STILL_SECONDS:
            return None
        return f"beat's loop has stood still for {late:.0f} s"

    def unready(self) -> str | None:
        """Why it sends nothing."""
        return "beat waits for its broker" if self._waits_for_broker else None

    def _ensure_connected(self) -> Any:
        self._waits_for_broker = True
        try:
            return super()._ensure_connected()
        finally:
            self._waits_for_broker = False


def _answer_probes(sender: Any, **_: object) -> None:
    scheduler = sender.scheduler
    if isinstance(scheduler, FleetScheduler):
        scheduler.probes = Probes(ROLE, sender.app.settings, live=scheduler.stuck, ready=scheduler.unready)
        scheduler.probes.start()


beat_init.connect(_answer_probes, weak=False)
