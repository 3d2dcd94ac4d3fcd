"""Defines a filter of calls."""

from dataclasses import dataclass
from typing import Literal

CallField = Literal["module", "tool", "user", "outcome", "error"]
"""What calls can be chosen by, and what is completed while somebody types it."""


@dataclass(frozen=True, slots=True)
class CallFilter:
    """A filter of calls: of a module, of a tool by its full name, of a user, in a conversation, with an outcome, with an error code. `None`: all.

    They ended at `since` or later, and before `until`: milliseconds since the epoch, by Redis' clock. `hidden_user` and
    `hidden_conversation` are the names of the same ones where a profile hides personal data.
    """

    module: str | None = None
    tool: str | None = None
    user: str | None = None
    outcome: str | None = None
    error: str | None = None
    since: int | None = None
    until: int | None = None
    conversation: str | None = None
    hidden_user: str | None = None
    hidden_conversation: str | None = None

    def fits_tool(self, name: str) -> bool:
        """Return whether calls of this tool match."""
        return (self.tool is None or name == self.tool) and (self.module is None or module_of(name) == self.module)

    @property
    def chooses_tools(self) -> bool:
        """Whether the filter depends on the tool."""
        return self.tool is not None or self.module is not None


def module_of(tool_name: str) -> str:
    """Return the module's part of a tool's name."""
    return tool_name.partition(".")[0]
