"""Asks a gateway for wake-ups that wait to be accepted, and has them tried and dropped."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolfleet_cli.console.wake_choice import ChosenWakes, WakeAction, WakeStep
from toolfleet_cli.remote.gateway import Gateway, place

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake

_ALL = "/operations/wake-ups"
_STEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class GatewayWakes:
    """The wake-ups, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def listed(self, chosen: ChosenWakes, limit: int, offset: int) -> "list[KeptWake]":
        """Return those that are tried next first."""
        found = self.gateway.get(_ALL, {"limit": limit, "offset": offset, **_query(chosen)})
        return [_wake(each) for each in found["wakeups"]]

    def shown(self, wake_id: str) -> "KeptWake | None":
        """One that waits or is dead."""
        found = self.gateway.find(place("operations", "wake-ups", wake_id))
        return None if found is None else _wake(found)

    def tried(self, wake_id: str) -> bool:
        """Have one tried now. Returns whether it was there."""
        return self.gateway.done(place("operations", "wake-ups", wake_id, "replay"))

    def dropped(self, wake_id: str) -> bool | None:
        """Forget one that waits; `None`: there is none. Returns whether it is tried just now, and may still be accepted."""
        found = self.gateway.find(place("operations", "wake-ups", wake_id), method="DELETE")
        return None if found is None else bool(found["under_way"])

    def handled(self, action: WakeAction, chosen: ChosenWakes, behind: str | None) -> WakeStep:
        """One step over all of a filter: have them tried, or forget them."""
        method, path = ("POST", f"{_ALL}/replay") if action == "replay" else ("DELETE", _ALL)
        query = _query(chosen) | ({} if behind is None else {"cursor": behind})
        found = self.gateway.ask(method, path, seconds=_STEP_SECONDS, params=query)
        return WakeStep(found["done"], found["under_way"], found["problems"], found.get("next"))


def _query(chosen: ChosenWakes) -> dict[str, Any]:
    return {name: value for name, value in asdict(chosen).items() if value}


def _wake(found: dict[str, Any]) -> "KeptWake":
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake

    return KeptWake(**found)
