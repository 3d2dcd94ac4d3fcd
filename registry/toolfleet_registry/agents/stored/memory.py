"""Keeps agents' profiles in this process: gone with it."""

from threading import Lock

from toolfleet_registry.agents.stored.port import MOST_NAMES, NOTHING_KEPT, ProfileTexts, Replaced
from toolfleet_registry.system import randomness


class InMemoryProfileStore:
    """The rules and nothing else."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries, self._histories = dict[str, str](), dict[str, str]()
        self._revision = NOTHING_KEPT

    def read(self, known: str = "") -> ProfileTexts | None:
        """Implements `ProfileStore.read`."""
        with self._lock:
            return None if known == self._revision else ProfileTexts(self._revision, dict(self._entries))

    def histories(self) -> dict[str, str]:
        """Implements `ProfileStore.histories`."""
        with self._lock:
            return dict(self._histories)

    def history(self, name: str) -> str:
        """Implements `ProfileStore.history`."""
        with self._lock:
            return self._histories.get(name, "")

    def replace(self, name: str, *, expected: str, history: str, entry: str) -> Replaced:
        """Implements `ProfileStore.replace`."""
        with self._lock:
            if self._histories.get(name, "") != expected:
                return Replaced.CHANGED
            if history and name not in self._histories and len(self._histories) >= MOST_NAMES:
                return Replaced.FULL
            for texts, text in ((self._histories, history), (self._entries, entry)):
                texts.pop(name, None)
                if text:
                    texts[name] = text
            self._revision = randomness.uuid4().hex
            return Replaced.DONE

    def close(self) -> None:
        """Do nothing: memory needs no connection."""
