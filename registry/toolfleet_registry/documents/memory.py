"""Keeps documents in this process: gone with it."""

from collections.abc import Mapping
from threading import Lock

from toolfleet_registry.documents.port import NOTED_SECONDS, NOTHING_KEPT, Changed, DocumentKind, Documents
from toolfleet_registry.system import randomness


class InMemoryDocuments:
    """The rules and nothing else."""

    def __init__(self, kind: DocumentKind) -> None:
        self._most = kind.most
        self._lock = Lock()
        self._entries = dict[str, str]()
        self._histories = dict[str, str]() if kind.has_history else self._entries
        self._used = dict[str, int]()
        self._revision = NOTHING_KEPT

    def read(self, known: str = "") -> Documents | None:
        """Implements `DocumentStore.read`."""
        with self._lock:
            return None if known == self._revision else Documents(self._revision, dict(self._entries))

    def histories(self) -> dict[str, str]:
        """Implements `DocumentStore.histories`."""
        with self._lock:
            return dict(self._histories)

    def history(self, name: str) -> str:
        """Implements `DocumentStore.history`."""
        with self._lock:
            return self._histories.get(name, "")

    def change(
        self, name: str, *, expected: str, entry: str, history: str | None = None, is_silent: bool = False
    ) -> Changed:
        """Implements `DocumentStore.change`."""
        history = entry if history is None else history
        with self._lock:
            if self._histories.get(name, "") != expected:
                return Changed.CONFLICT
            if history and not expected and len(self._histories) >= self._most:
                return Changed.FULL
            for texts, text in ((self._histories, history), (self._entries, entry)):
                texts.pop(name, None)
                if text:
                    texts[name] = text
            if not history:
                self._used.pop(name, None)
            if not is_silent:
                self._revision = randomness.uuid4().hex
            return Changed.DONE

    def used(self) -> dict[str, int]:
        """Implements `DocumentStore.used`."""
        with self._lock:
            return dict(self._used)

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `DocumentStore.note_used`."""
        with self._lock:
            for name, at in used.items():
                if name in self._entries and at - self._used.get(name, 0) >= NOTED_SECONDS:
                    self._used[name] = at

    def close(self) -> None:
        """Do nothing: memory needs no connection."""
