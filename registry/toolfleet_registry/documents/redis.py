"""Keeps documents in Redis, for every process of a fleet: each change is one script inside Redis."""

from collections.abc import Mapping
from typing import Any

from toolfleet_registry.lua_files import script
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.store.documents import NOTED_SECONDS, Changed, DocumentKind, DocumentNames, Documents
from toolfleet_registry.store.redis import RedisCommands
from toolfleet_registry.system import randomness

_CHANGE = script("documents/change")
_COPY = script("documents/copy")
_NOTE_USED = script("documents/note_used")
_READ = script("documents/read")


class RedisDocuments:
    """A store of documents in the Redis at that URL. Raises `SettingsError`; does not connect yet.

    `master` is the name that the sentinels of a `sentinel://` URL watch.
    """

    def __init__(self, url: str, kind: DocumentKind, keys: Keys = Keys(), *, master: str | None = None) -> None:  # noqa: B008 - it is frozen
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
