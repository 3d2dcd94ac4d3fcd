"""Makes the one key of a gateway that was given neither keys nor an issuer: it lives as long as its process, and is kept nowhere."""

from dataclasses import dataclass, field

from toolfleet_registry.access.api_key import ApiKey
from toolfleet_registry.access.key_text import KeyText, new_key_text, read_key_text
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.time import fleet_clock

USER = "operator"
"""In whose name it calls, unless a request says otherwise."""


@dataclass(frozen=True, slots=True)
class GeneratedKey:
    """A key with all rights. The process that starts the gateway prints its `text` once; logs have its id only."""

    key: ApiKey
    secret: KeyText = field(repr=False)

    @property
    def text(self) -> str:
        """The text that its holder sends."""
        return self.secret.text

    def is_sent_as(self, text: str) -> bool:
        """Return whether the text is this key."""
        return (read := read_key_text(text)) is not None and read.has_digest(self.secret.digest)


def generate_key(text: str | None = None) -> GeneratedKey:
    """Make one; or the one of a `text`, for several gateways that were started together. Raises `SettingsError` for a text that is no key."""
    secret = new_key_text() if text is None else read_key_text(text)
    if secret is None:
        raise SettingsError("The gateway's own key is none that `toolfleet` has made.")
    key = ApiKey(
        id=secret.id,
        user_id=USER,
        permission="owner",
        allowed_modules="*",
        role="admin",
        acts_for_others=True,
        created_at=fleet_clock.now(),
        created_by="gateway",
        description="made by the gateway at its start",
    )
    return GeneratedKey(key, secret)
