"""Names what can happen to a tool in a registry."""

from typing import Final, Literal, get_args

FindingKind = Literal["drifted", "withheld"]
"""What was found about a tool that is offered: other content under the same version, or what nobody has approved."""

EventKind = Literal["registered", "changed", "enabled", "disabled", "removed", "rolled_back"] | FindingKind
"""What happened to a tool: it is new, it has another specification, an operator has put an earlier one in force, …"""

EVENT_KINDS: Final[tuple[str, ...]] = tuple(kind for part in get_args(EventKind) for kind in get_args(part))
"""All of them."""
