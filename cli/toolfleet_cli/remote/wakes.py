"""Asks a gateway for wake-ups that wait to be accepted, and has them tried."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolfleet_cli.remote.gateway import Gateway, place

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake


@dataclass(frozen=True, slots=True)
class GatewayWakes:
    """The wake-ups, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def listed(self, limit: int, offset: int) -> "list[KeptWake]":
        """Those that are tried next first."""
        found = self.gateway.get("/operations/wake-ups", {"limit": limit, "offset": offset})
        return [_wake(each) for each in found["wakeups"]]

    def shown(self, wake_id: str) -> "KeptWake | None":
        """One that waits or is dead."""
        found = self.gateway.find(place("operations", "wake-ups", wake_id))
        return None if found is None else _wake(found)

    def tried(self, wake_id: str) -> bool:
        """Have one tried now. Returns whether it was there."""
        return self.gateway.done(place("operations", "wake-ups", wake_id, "replay"))


def _wake(found: dict[str, Any]) -> "KeptWake":
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake  # noqa: PLC0415 - `--help` needs nothing of the tasks

    known: dict[str, Any] = {"due_at": None, "died_at": None, "body": None, **found}
    return KeptWake(**known)
