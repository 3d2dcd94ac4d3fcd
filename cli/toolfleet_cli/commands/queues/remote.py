"""Reads and changes queues at a gateway."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolfleet_cli.console.output import note
from toolfleet_cli.remote.gateway import Gateway, place

if TYPE_CHECKING:
    from toolfleet_tasks.metrics.queue_overview import QueueOverview

_ALL = "/operations/queues"
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RemoteQueues:
    """The queues, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def listed(self) -> "list[QueueOverview]":
        """All queues, by name."""
        return _read(self.gateway.get(_ALL))

    def changed(self, name: str, action: str, reason: str) -> bool:
        """Do it to a queue. Returns whether it was otherwise before."""
        body = {"action": action, "reason": reason}
        return bool(self.gateway.post(place("operations", "queues", name), body)["changed"])

    def waited(self, name: str, seconds: float) -> "list[QueueOverview]":
        """The queues of this name when surely nothing waits or runs there any more, or after so long."""
        from toolfleet_tasks.metrics.queue_overview import Emptiness  # noqa: PLC0415 - takes a while to load

        until, emptiness = (
            time.monotonic() + seconds,
            Emptiness(sees_held=False),
        )  # a gateway does not say which broker it is
        while True:
            asked_at = time.monotonic()
            queues = _read(self.gateway.get(place("operations", "queues", name)))
            if emptiness.is_over(queues, asked_at, until=until):
                return queues
            time.sleep(_POLL_SECONDS if emptiness.seen else min(_POLL_SECONDS, max(until - time.monotonic(), 0)))


def _read(found: Any) -> "list[QueueOverview]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - takes a while to load

    from toolfleet_tasks.metrics.queue_overview import QueueOverview  # noqa: PLC0415 - as above

    if (away := found.get("broker_error")) is not None:
        note(away, style="red")
    missing = {"since": None, "oldest_seconds": None, "waiting": None}
    return TypeAdapter(list[QueueOverview]).validate_python([{**missing, **each} for each in found["queues"]])
