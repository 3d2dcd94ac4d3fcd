"""Keeps API keys in Redis, for every process of a fleet: each change is one script inside Redis."""

from collections.abc import Mapping, Sequence

from toolfleet_registry.access.port import MOST_KEYS, NOTED_SECONDS, StoredKeys
from toolfleet_registry.lua.files import script
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.store.redis_commands import RedisCommands
from toolfleet_registry.system import randomness

_PATIENCE_SECONDS = 2.0  # a gateway that waits for longer could not say any more that a key is good

_ADD = script("access/add")
_REMOVE = script("access/remove")
_REPLACE = script("access/replace")
_READ = script("access/read")
_NOTE_USED = script("access/note_used")


class RedisKeyStore:
    """A key store in the Redis at that URL.

    `master` is the name that the sentinels of a `sentinel://` URL watch. Raises `SettingsError`; does not connect yet.
    """

    def __init__(self, url: str, keys: Keys = Keys(), *, master: str | None = None) -> None:  # noqa: B008 - it is frozen
        self._redis = sync_client(url, master=master, timeout_seconds=_PATIENCE_SECONDS)
        self._commands = RedisCommands(self._redis, patience_seconds=_PATIENCE_SECONDS)
        self._keys, self._used = keys.registry.api_keys, keys.registry.api_keys_used
        self._revision = keys.registry.api_keys_revision

    def add(self, key_id: str, entry: str) -> bool:
        """Implements `KeyStore.add`."""
        new, names = randomness.uuid4().hex, {"keys": self._keys, "revision": self._revision}
        return bool(self._commands.ask_script(_ADD, **names, most=MOST_KEYS, new=new, id=key_id, entry=entry))

    def replace(self, key_id: str, entry: str, *, expected: str) -> None:
        """Implements `KeyStore.replace`."""
        self._commands.ask_script(_REPLACE, keys=self._keys, id=key_id, expected=expected, entry=entry)

    def remove(self, key_ids: Sequence[str]) -> list[str]:
        """Implements `KeyStore.remove`."""
        names = {"keys": self._keys, "used": self._used, "revision": self._revision}
        removed: list[bytes] = self._commands.ask_script(_REMOVE, **names, new=randomness.uuid4().hex, ids=key_ids)
        return [key_id.decode() for key_id in removed]

    def read(self, known: str = "") -> StoredKeys | None:
        """Implements `KeyStore.read`."""
        found = self._commands.ask_script(_READ, keys=self._keys, revision=self._revision, known=known)
        if found is None:
            return None
        revision, flat = found
        texts = [text.decode("utf-8", "replace") for text in flat]  # what is no text is no key, either
        return StoredKeys(revision.decode(), dict(zip(texts[::2], texts[1::2], strict=True)))

    def used(self) -> dict[str, int]:
        """Implements `KeyStore.used`."""
        found: Mapping[bytes, bytes] = self._commands.ask("HGETALL", self._used)
        return {key_id.decode(): int(at) for key_id, at in found.items()}

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `KeyStore.note_used`."""
        names = {"keys": self._keys, "used": self._used}
        self._commands.ask_script(_NOTE_USED, **names, seconds=NOTED_SECONDS, noted=used.items())

    def close(self) -> None:
        """Implements `KeyStore.close`."""
        self._redis.close()
