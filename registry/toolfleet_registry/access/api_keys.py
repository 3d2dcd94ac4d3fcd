"""Makes, lists, revokes and finds API keys, in any of the key stores."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from toolfleet_registry.access.api_key import ApiKey, KeyDraft
from toolfleet_registry.access.entries import API_KEYS, KeyEntry, KeyRecord, key_seal, read_entry
from toolfleet_registry.access.grants import KeyMaker, refusal_of
from toolfleet_registry.access.key_text import new_key_text, read_key_text
from toolfleet_registry.errors import BeyondOwnRights, MessageRefused, OperationRefused
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.store.documents import Changed, DocumentStore
from toolfleet_registry.store.factory import open_documents
from toolfleet_registry.system import fleet_clock


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key, and its `text`, which is told this once and kept nowhere."""

    key: ApiKey
    text: str = field(repr=False)


class ApiKeys:
    """Synchronous, as the store is. Raises `FleetUnavailable` when that does not answer. `seal`: as `key_seal` makes it."""

    def __init__(self, store: DocumentStore, seal: TextSeal) -> None:
        self._store, self._seal = store, seal

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the API keys of the fleet with these settings; the caller closes them.

        Raises `SettingsError`; does not connect yet.
        """
        return cls(open_documents(settings, API_KEYS), key_seal(settings))

    def create(self, draft: KeyDraft, maker: KeyMaker) -> CreatedKey:
        """Make a key. Raises `BeyondOwnRights` if it would have more than its maker has, `OperationRefused` if there are too many.

        One that was made while no answer came is listed, and its text is lost: revoke it.
        """
        if (refusal := refusal_of(draft, maker)) is not None:
            raise BeyondOwnRights(refusal)
        now = fleet_clock.now()
        if draft.expires_at is not None and draft.expires_at <= now:
            raise OperationRefused("expires_at must be in the future.")
        made = new_key_text()
        fields = {name: getattr(draft, name) for name in KeyDraft.model_fields}
        key = ApiKey(**fields, id=made.id, created_at=now, created_by=maker.name)
        entry = self._seal.sign(_written(KeyEntry(digest=made.digest, key=key)))
        if self._store.change(key.id, expected="", entry=entry) is not Changed.DONE:  # a new id is nobody else's
            raise OperationRefused(f"There are {API_KEYS.most} API keys already: revoke some that are not used.")
        return CreatedKey(key, made.text)

    def records(self) -> list[KeyRecord]:
        """All keys, also expired ones, the oldest first; what cannot be read is left out, with a warning."""
        found, used = self._store.read(), self._store.used()
        entries = {} if found is None else found.entries
        read = [
            entry.key for key_id, text in entries.items() if (entry := read_entry(key_id, text, self._seal)) is not None
        ]
        return [KeyRecord(key, used.get(key.id)) for key in sorted(read, key=lambda key: (key.created_at, key.id))]

    def revoke(self, key_ids: Sequence[str]) -> list[str]:
        """Let these keys count for nothing, within 2 s everywhere. Returns those of them that there were."""
        return [key_id for key_id in dict.fromkeys(key_ids) if self._remove(key_id)]

    def sign_again(self) -> None:
        """Sign with the fleet's key what was signed with one of its old keys, so that these can go."""
        found = self._store.read()
        for key_id, text in ({} if found is None else found.entries).items():
            with contextlib.suppress(MessageRefused):
                if (signed := self._seal.sign(self._seal.read(text))) != text:
                    self._store.change(key_id, expected=text, entry=signed, is_silent=True)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def find(self, text: str) -> ApiKey | None:
        """The key with this text; `None` if there is none, or it has expired. Asks the store each time."""
        read = read_key_text(text)
        found = None if read is None else self._store.read()
        if read is None or found is None or (stored := found.entries.get(read.id)) is None:
            return None
        entry = read_entry(read.id, stored, self._seal)
        if entry is None or not read.has_digest(entry.digest) or entry.key.is_expired(fleet_clock.now()):
            return None
        return entry.key

    def _remove(self, key_id: str) -> bool:
        while text := self._store.history(key_id):
            if (
                self._store.change(key_id, expected=text, entry="") is Changed.DONE
            ):  # else it was signed again meanwhile
                return True
        return False


def _written(entry: KeyEntry) -> str:
    """Return the entry as JSON without fields at their defaults, so that earlier releases can read keys without newer fields."""
    return entry.model_dump_json(exclude_defaults=True)
