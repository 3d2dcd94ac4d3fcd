"""Defines where API keys are kept: the port that memory, Redis and SQL databases implement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

MOST_KEYS: Final = 10_000
"""That are kept at once: every gateway has all of them in memory."""

NOTED_SECONDS: Final = 60
"""The use of a key is noted at most so often."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """All stored keys at one moment: entries by key id. `revision` changes with every change."""

    revision: str
    entries: Mapping[str, str]


class KeyStore(Protocol):
    """Synchronous, and for any thread: asynchronous code calls it in one. Each change happens as a whole or not at all.

    What keeps its data in a server raises `FleetUnavailable` when that does not answer: a change may then have happened or not.
    """

    def add(self, key_id: str, entry: str) -> bool:
        """Keep a key. Returns whether there was a place: not for one that has the id of another, nor beyond `MOST_KEYS`."""
        ...

    def replace(self, key_id: str, entry: str, *, expected: str) -> None:
        """Replace the entry of a key that was signed again, if the stored one is as expected.

        The revision stays: readers see no change.
        """
        ...

    def remove(self, key_ids: Sequence[str]) -> list[str]:
        """Forget keys. Returns those of them that there were."""
        ...

    def read(self, known: str = "") -> StoredKeys | None:
        """All that there are; `None` if the revision still is the one that is known."""
        ...

    def used(self) -> dict[str, int]:
        """Return when keys were last used, in seconds since the epoch, by id; without keys that were never used."""
        ...

    def note_used(self, used: Mapping[str, int]) -> None:
        """Note that keys were used, by id; not if they were less than a minute before, and not of keys that are gone."""
        ...

    def close(self) -> None:
        """Let go of connections. A closed store is used no more."""
        ...
