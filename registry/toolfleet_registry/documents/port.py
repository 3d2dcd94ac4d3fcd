"""Defines what a store of revisioned documents is: the port that memory, Redis and SQL databases implement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from toolfleet_registry.redis.keys import Keys

NOTHING_KEPT: Final = "none"
"""The revision of a store that was never changed."""

NOTED_SECONDS: Final = 60
"""The use of a document is noted at most so often."""


@dataclass(frozen=True, slots=True)
class DocumentNames:
    """The keys of one kind of documents in Redis. They and the formats in them are the same in every release."""

    entries: str
    revision: str
    histories: str | None = None
    """`None` for documents without a history."""
    used: str | None = None
    """When each was used last; `None` if that is not noted."""
    announced: str | None = None
    """A number that grows with each change, and is announced on `channel`; `None` if changes are not announced."""
    channel: str = ""


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of documents: how many there may be, and where they are kept."""

    most: int
    """With those that have a history and no entry. Every process has all entries in memory."""
    names: Callable[[Keys], DocumentNames]
    """The keys in Redis, for the fleet's key prefix."""
    table: str
    """The table in SQL, which has a `history` or not; `<table>_state` has the revision."""
    has_history: bool = False
    """Whether documents have a history; without one, the entry stands in its place."""
    patience_seconds: float = 5.0
    """For an answer of Redis."""


class Changed(StrEnum):
    """The outcome of a change."""

    DONE = "done"
    CONFLICT = "changed"
    """Not made: what is kept is not what was expected."""
    FULL = "full"
    """Not made: there are as many documents as there may be."""


@dataclass(frozen=True, slots=True)
class Documents:
    """All documents in force at one moment: entries by name. `revision` changes with every change."""

    revision: str
    entries: Mapping[str, str]


class DocumentStore(Protocol):
    """A store of one kind of documents, each of which has a name, an entry, and perhaps a history.

    The entry is the text in force, which all processes read; the history has earlier versions too, and outlives the entry.

    Synchronous, and for any thread: asynchronous code calls it in one. Each change happens as a whole or not at all. A store
    with a server raises `FleetUnavailable` when that does not answer: a change may then have happened or not.
    """

    def read(self, known: str = "") -> Documents | None:
        """All that are in force; `None` if the revision still is the one that is known."""
        ...

    def histories(self) -> dict[str, str]:
        """The histories of all names, also of those without an entry."""
        ...

    def history(self, name: str) -> str:
        """Return the text that a change of this document must expect: its history, "" if there is none."""
        ...

    def change(
        self, name: str, *, expected: str, entry: str, history: str | None = None, is_silent: bool = False
    ) -> Changed:
        """Keep these texts if the history is `expected`, "" for none. An empty entry is none; without a history all is forgotten.

        `history` is the entry, for documents that have no history. A change that `is_silent` leaves the revision: readers see
        no change.
        """
        ...

    def used(self) -> dict[str, int]:
        """Return when documents were last used, in seconds since the epoch, by name; without those that were never used."""
        ...

    def note_used(self, used: Mapping[str, int]) -> None:
        """Note that documents were used, by name; not less than a minute after the last note, nor of documents that are gone."""
        ...

    def close(self) -> None:
        """Let go of connections. A closed store is used no more."""
        ...
