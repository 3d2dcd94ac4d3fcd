"""Celery's worker process, without what a fleet has no use for."""

from typing import Any

from celery.apps.worker import Worker


class FleetWorker(Worker):  # type: ignore[misc] # Celery ships no types
    """Starts at once: it neither asks other workers for their logical clocks, which takes a second, nor gossips."""

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """As Celery's command line gives them, but for these two."""
        args: dict[str, Any] = super().prepare_args(**kwargs)
        return args | {"without_mingle": True, "without_gossip": True}
