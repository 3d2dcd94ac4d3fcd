"""Describes an MCP server's announcements of changes other than to its tools."""

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
    """Return whether a watcher of `watched` is told of `uri`: the same address, or one below it, as the protocol defines."""
    return uri == watched or uri.startswith(watched if watched.endswith("/") else f"{watched}/")
