"""Keeps the revisioned documents that operators change, API keys and agents' profiles: the port of their stores, in memory and in Redis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from toolfleet_registry.lua_files import script
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.system import randomness

NOTHING_KEPT: Final = "none"
"""The revision of a store that was never changed."""

NOTED_SECONDS: Final = 60
"""The use of a document is noted at most so often."""

_CHANGE = script("documents/change")
_COPY = script("documents/copy")
_NOTE_USED = script("documents/note_used")
_READ = script("documents/read")


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
        """Return all that are in force; `None` if the revision still is the one that is known."""
        ...

    def histories(self) -> dict[str, str]:
        """Return the histories of all names, also of those without an entry."""
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


class RedisDocuments:
    """A store of documents in the Redis at that URL. Raises `SettingsError`; does not connect yet.

    `master` is the name that the sentinels of a `sentinel://` URL watch.
    """

    def __init__(self, url: str, kind: DocumentKind, keys: Keys = Keys(), *, master: str | None = None) -> None:  # noqa: B008 - it is frozen
        from toolfleet_registry.store.redis import RedisCommands  # agents and workers read only

        self._redis = sync_client(url, master=master, timeout_seconds=kind.patience_seconds)
        self._commands = RedisCommands(self._redis, patience_seconds=kind.patience_seconds)
        self._most, self._names = kind.most, kind.names(keys)
        self._histories = self._names.histories or self._names.entries

    def read(self, known: str = "") -> Documents | None:
        """Implements `DocumentStore.read`."""
        names = {"entries": self._names.entries, "revision": self._names.revision}
        return documents_of(self._commands.ask_script(_READ, **names, known=known))

    def histories(self) -> dict[str, str]:
        """Implements `DocumentStore.histories`."""
        found: Mapping[bytes, bytes] = self._commands.ask("HGETALL", self._histories)
        return {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, text in found.items()}

    def history(self, name: str) -> str:
        """Implements `DocumentStore.history`. What is no text is kept as it is, so that a change can expect it."""
        found: bytes | None = self._commands.ask("HGET", self._histories, name)
        return "" if found is None else found.decode("utf-8", "surrogateescape")

    def change(
        self, name: str, *, expected: str, entry: str, history: str | None = None, is_silent: bool = False
    ) -> Changed:
        """Implements `DocumentStore.change`."""
        done: bytes = self._commands.ask_script(
            _CHANGE,
            **_announcing(self._names),
            histories=self._histories,
            used=self._names.used or self._histories,
            most=self._most,
            new="" if is_silent else randomness.uuid4().hex,
            name=name,
            expected=expected.encode("utf-8", "surrogateescape"),
            history=entry if history is None else history,
            entry=entry,
        )
        return Changed(done.decode())

    def used(self) -> dict[str, int]:
        """Implements `DocumentStore.used`."""
        found: Mapping[bytes, bytes] = self._commands.ask("HGETALL", self._names.used or "")
        return {name.decode(): int(at) for name, at in found.items()}

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `DocumentStore.note_used`."""
        names = {"entries": self._names.entries, "used": self._names.used}
        self._commands.ask_script(_NOTE_USED, **names, seconds=NOTED_SECONDS, noted=used.items())

    def close(self) -> None:
        """Implements `DocumentStore.close`."""
        self._redis.close()


def reading(names: DocumentNames, known: str) -> Parameters:
    """Return the command that reads all documents, for another client; `documents_of` parses its answer as bytes."""
    return _READ.command(entries=names.entries, revision=names.revision, known=known)


def copying(names: DocumentNames, documents: Documents, *, expected: str) -> Parameters:
    """Return the command that replaces a copy of documents if its revision is `expected`, "" for no copy; its answer is 1 then."""
    texts = list(documents.entries.items())
    return _COPY.command(**_announcing(names), expected=expected, new=documents.revision, texts=texts)


def documents_of(found: list[bytes | list[bytes]] | None) -> Documents | None:
    """Parse the answer of the script that reads documents."""
    if found is None:
        return None
    revision, flat = found
    assert isinstance(revision, bytes)
    # What is no text is no document.
    texts = [text.decode("utf-8", "replace") for text in flat if isinstance(text, bytes)]
    return Documents(revision.decode(), dict(zip(texts[::2], texts[1::2], strict=True)))


def _announcing(names: DocumentNames) -> dict[str, Any]:
    """Return the keys of a change. Without a channel nothing is announced, and the place of the number has no meaning."""
    announced = names.announced or names.revision
    return {"entries": names.entries, "revision": names.revision, "announced": announced, "channel": names.channel}
