"""Lists the entries of the navigation, for whoever may see them."""

from dataclasses import dataclass
from typing import Final

from toolfleet_gateway.auth.identity import Identity
from toolfleet_registry.access.roles import Role


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A page that the navigation leads to."""

    path: str
    title: str
    role: Role = "viewer"


ENTRIES: Final = (
    NavigationEntry("/", "Overview"),
    NavigationEntry("/calls", "Calls"),
    NavigationEntry("/approvals", "Approvals", "none"),
    NavigationEntry("/dead-letters", "Dead letters"),
    NavigationEntry("/modules", "Modules"),
    NavigationEntry("/tools", "Tools"),
    NavigationEntry("/jobs", "Jobs"),
    NavigationEntry("/wake-ups", "Wake-ups"),
    NavigationEntry("/queues", "Queues"),
    NavigationEntry("/limits", "Limits"),
    NavigationEntry("/agents", "Agents"),
    NavigationEntry("/errors", "Tool files"),
    NavigationEntry("/audit", "Audit"),
    NavigationEntry("/keys", "Keys", "admin"),
)


def entries_for(who: Identity) -> list[NavigationEntry]:
    """Those of pages that they may see."""
    return [entry for entry in ENTRIES if who.has_role(entry.role)]
