"""Asks a gateway for API keys, and has them made and revoked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolfleet_cli.remote.gateway import Gateway, place

if TYPE_CHECKING:
    from toolfleet_registry.access.api_key import ApiKey, KeyDraft
    from toolfleet_registry.access.api_keys import CreatedKey
    from toolfleet_registry.access.entries import KeyRecord

_ALL = "/operations/keys"


@dataclass(frozen=True, slots=True)
class RemoteKeys:
    """The keys, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def created(self, draft: "KeyDraft") -> "CreatedKey":
        """A new key, with its text; it has no more than the key that asks."""
        from toolfleet_registry.access.api_keys import CreatedKey

        found = self.gateway.post(_ALL, draft.model_dump(mode="json"))
        return CreatedKey(_key(found["key"]), found["text"])

    def listed(self) -> "list[KeyRecord]":
        """All keys, the oldest first."""
        from toolfleet_registry.access.entries import KeyRecord

        return [KeyRecord(_key(each["key"]), each.get("last_used_at")) for each in self.gateway.get(_ALL)["keys"]]

    def revoked(self, key_ids: Sequence[str]) -> list[str]:
        """Revoke these, and return those that there were."""
        return [one for one in key_ids if self.gateway.forget(place("operations", "keys", one))]


def _key(found: dict[str, Any]) -> "ApiKey":
    from toolfleet_registry.access.api_key import ApiKey

    return ApiKey.model_validate(found)
