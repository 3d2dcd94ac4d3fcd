"""Tells what a worker saw of a call that has ended."""

from toolfleet_registry.contracts import Audit, PublishedCall
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.worker.running_task import RunningTask


def audit_of(task: RunningTask, call: PublishedCall, *, attempts: int, started_at: float) -> Audit:
    """Of a call that ends now; `attempts` have met the runner, and the last one began at `started_at`."""
    now = fleet_clock.now()
    return Audit(
        call_id=call.call_id,
        tool=call.tool_name,
        ts=now,
        attempts=attempts,
        queued_ms=round(max(started_at - call.published_at, 0) * 1000, 1),  # an agent's clock may be ahead
        duration_ms=round((now - started_at) * 1000, 1),
        worker=task.request.hostname,
    )
