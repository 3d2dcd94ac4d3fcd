"""Keeps agents' profiles in Redis, for every process of a fleet: each change is one script inside Redis."""

from collections.abc import Mapping

from toolfleet_registry.agents.stored.port import MOST_NAMES, ProfileTexts, Replaced
from toolfleet_registry.lua.files import script
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.store.redis_commands import RedisCommands
from toolfleet_registry.system import randomness

_PATIENCE_SECONDS = 5.0

_READ = script("agents/read")
_REPLACE = script("agents/replace")


class RedisProfileStore:
    """A profile store in the Redis at that URL. Raises `SettingsError`; does not connect yet.

    `master` is the name that the sentinels of a `sentinel://` URL watch. In the fleet's own Redis, a change is
    announced with the write.
    """

    def __init__(self, url: str, keys: Keys = Keys(), *, master: str | None = None) -> None:  # noqa: B008 - it is frozen
        self._redis = sync_client(url, master=master, timeout_seconds=_PATIENCE_SECONDS)
        self._commands = RedisCommands(self._redis, patience_seconds=_PATIENCE_SECONDS)
        self._keys = keys

    def read(self, known: str = "") -> ProfileTexts | None:
        """Implements `ProfileStore.read`."""
        names = {"entries": self._keys.registry.agents, "revision": self._keys.registry.agents_revision}
        return texts_of(self._commands.ask_script(_READ, **names, known=known))

    def histories(self) -> dict[str, str]:
        """Implements `ProfileStore.histories`."""
        found: Mapping[bytes, bytes] = self._commands.ask("HGETALL", self._keys.registry.agent_histories)
        return {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, text in found.items()}

    def history(self, name: str) -> str:
        """Implements `ProfileStore.history`."""
        found: bytes | None = self._commands.ask("HGET", self._keys.registry.agent_histories, name)
        return "" if found is None else found.decode("utf-8", "replace")

    def replace(self, name: str, *, expected: str, history: str, entry: str) -> Replaced:
        """Implements `ProfileStore.replace`."""
        keys = self._keys.registry
        done: bytes = self._commands.ask_script(
            _REPLACE,
            entries=keys.agents,
            histories=keys.agent_histories,
            revision=keys.agents_revision,
            manifests=self._keys.manifests_revision,
            channel=self._keys.manifests_changed,
            most=MOST_NAMES,
            new=randomness.uuid4().hex,
            name=name,
            expected=expected,
            history=history,
            entry=entry,
        )
        return Replaced(done.decode())

    def close(self) -> None:
        """Implements `ProfileStore.close`."""
        self._redis.close()


def texts_of(found: list[bytes | list[bytes]] | None) -> ProfileTexts | None:
    """Parse the answer of the script that reads the profiles."""
    if found is None:
        return None
    revision, flat = found
    assert isinstance(revision, bytes)  # noqa: S101 - as the script says
    texts = [
        text.decode("utf-8", "replace") for text in flat if isinstance(text, bytes)
    ]  # what is no text is no profile
    return ProfileTexts(revision.decode(), dict(zip(texts[::2], texts[1::2], strict=True)))
