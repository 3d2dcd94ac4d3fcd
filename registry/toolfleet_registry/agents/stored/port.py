"""Defines where agents' profiles are kept: the port that memory, Redis and SQL databases implement."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from toolfleet_registry.config.agent_profile import MOST_PROFILES

MOST_NAMES: Final = MOST_PROFILES
"""That are kept at once, with those of removed profiles, whose versions are still there."""

NOTHING_KEPT: Final = "none"
"""The revision of a store that nobody has changed yet."""


class Replaced(StrEnum):
    """The outcome of a change."""

    DONE = "done"
    CHANGED = "changed"
    """Not made: what is kept is not what was expected."""
    FULL = "full"
    """Not made: there are `MOST_NAMES` names."""


@dataclass(frozen=True, slots=True)
class ProfileTexts:
    """All profiles in force at one moment: entries by name. `revision` changes with every change."""

    revision: str
    entries: Mapping[str, str]


class ProfileStore(Protocol):
    """Synchronous, and for any thread: asynchronous code calls it in one. Each change happens as a whole or not at all.

    Of each name there are two texts: the `entry` is the profile in force, "" for none; the `history` has its versions.
    What keeps its data in a server raises `FleetUnavailable` when that does not answer: a change may then have happened or not.
    """

    def read(self, known: str = "") -> ProfileTexts | None:
        """All that are in force; `None` if the revision still is the one that is known."""
        ...

    def histories(self) -> dict[str, str]:
        """The histories of all names, also of removed profiles."""
        ...

    def history(self, name: str) -> str:
        """Return the history of one name, "" if there is none."""
        ...

    def replace(self, name: str, *, expected: str, history: str, entry: str) -> Replaced:
        """Keep these texts if the history is as expected, "" for none. Without a history the name is forgotten."""
        ...

    def close(self) -> None:
        """Let go of connections. A closed store is used no more."""
        ...
