"""Defines the stored entry of an API key: its digest, and the rights of its holder."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from toolfleet_registry.access.api_key import ApiKey
from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.contracts.message import Message
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.store.documents import DocumentKind, DocumentNames
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)


def _names(keys: Keys) -> DocumentNames:
    names = keys.registry
    return DocumentNames(names.api_keys, names.api_keys_revision, used=names.api_keys_used)


API_KEYS = DocumentKind(
    most=10_000,  # every gateway has all of them in memory
    names=_names,
    table="toolfleet_registry_api_keys",
    patience_seconds=2.0,  # a gateway that waits for longer could not say any more that a key is good
)
"""The documents that are API keys, by their ids."""


class KeyEntry(Message):
    """A key as it is stored. A field that this release does not know could narrow it: such a key counts for nothing here."""

    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 of its text."""
    key: ApiKey
    """What it is."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is listed. `last_used_at`: in seconds since the epoch, to a minute; `None`: never."""

    key: ApiKey
    last_used_at: float | None


def key_seal(settings: SigningSettings) -> TextSeal:
    """Return the seal that signs entries, so that write access to the store is not enough to create a key.

    Raises `SettingsError`.
    """
    return TextSeal(settings.signing_key, purpose="api-key", old_keys=settings.signing_keys_old)


def read_entry(key_id: str, text: str, seal: TextSeal) -> KeyEntry | None:
    """Parse a stored key.

    Returns `None`, with a warning, if it is unreadable, not signed by this fleet, or has another id.
    """
    try:
        entry = KeyEntry.model_validate_json(seal.read(text))
    except MessageRefused as exc:
        _log.warning("api_key_unreadable", key_id=key_id, error=str(exc))
        return None
    except ValidationError as exc:
        _log.warning("api_key_unreadable", key_id=key_id, error=exc.errors(include_input=False)[0]["msg"])
        return None
    if entry.key.id != key_id:
        _log.warning("api_key_unreadable", key_id=key_id, error="it says that it is another key")
        return None
    return entry
