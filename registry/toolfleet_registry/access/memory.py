"""Keeps API keys in this process: gone with it."""

from collections.abc import Mapping, Sequence
from threading import Lock

from toolfleet_registry.access.port import MOST_KEYS, NOTED_SECONDS, StoredKeys
from toolfleet_registry.system import randomness


class InMemoryKeyStore:
    """The rules and nothing else."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries = dict[str, str]()
        self._used = dict[str, int]()
        self._revision = randomness.uuid4().hex

    def add(self, key_id: str, entry: str) -> bool:
        """Implements `KeyStore.add`."""
        with self._lock:
            if key_id in self._entries or len(self._entries) >= MOST_KEYS:
                return False
            self._entries[key_id] = entry
            self._revision = randomness.uuid4().hex
            return True

    def replace(self, key_id: str, entry: str, *, expected: str) -> None:
        """Implements `KeyStore.replace`."""
        with self._lock:
            if self._entries.get(key_id) == expected:
                self._entries[key_id] = entry

    def remove(self, key_ids: Sequence[str]) -> list[str]:
        """Implements `KeyStore.remove`."""
        with self._lock:
            removed = [key_id for key_id in dict.fromkeys(key_ids) if self._entries.pop(key_id, None) is not None]
            for key_id in removed:
                self._used.pop(key_id, None)
            if removed:
                self._revision = randomness.uuid4().hex
            return removed

    def read(self, known: str = "") -> StoredKeys | None:
        """Implements `KeyStore.read`."""
        with self._lock:
            return None if known == self._revision else StoredKeys(self._revision, dict(self._entries))

    def used(self) -> dict[str, int]:
        """Implements `KeyStore.used`."""
        with self._lock:
            return dict(self._used)

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `KeyStore.note_used`."""
        with self._lock:
            for key_id, at in used.items():
                if key_id in self._entries and at - self._used.get(key_id, 0) >= NOTED_SECONDS:
                    self._used[key_id] = at

    def close(self) -> None:
        """Do nothing: memory needs no connection."""
