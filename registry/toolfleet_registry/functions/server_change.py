"""Describes what an MCP server says to have changed beside its tools."""

from dataclasses import dataclass
from typing import Final, Literal

LONGEST_URI: Final = 2_000
"""Characters of a resource's address that can be watched."""

MOST_WATCHED: Final = 1_000
"""Resources of one module, or of one client: of more, those that were asked for last are watched."""

ChangedKind = Literal["prompts", "resources", "resource"]
"""Two lists, and the content of one resource."""


@dataclass(frozen=True, slots=True)
class ServerChange:
    """One change. `uri` is that of a resource, else empty."""

    kind: ChangedKind
    uri: str = ""


def is_within(uri: str, watched: str) -> bool:
    """Whether who watches one address is told of the other: of the same, and of what lies below it, as the protocol has it."""
    return uri == watched or uri.startswith(watched if watched.endswith("/") else f"{watched}/")
