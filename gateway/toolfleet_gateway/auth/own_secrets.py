"""Makes the secrets of a gateway and of a local fleet: a key for its process only, and those that are kept in files."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from toolfleet_registry.access import ApiKey, KeyText, new_key_text, read_key_text
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.system import fleet_clock

_USER = "operator"
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
        user_id=_USER,
        permission="owner",
        allowed_modules="*",
        role="admin",
        acts_for_others=True,
        created_at=fleet_clock.now(),
        created_by="gateway",
        description="made by the gateway at its start",
    )
    return GeneratedKey(key, secret)


def kept_key(path: Path) -> str:
    """The gateway's key in the file; a new one, which the file has from then on, if there is none that can be read.

    Raises `OSError` where the file cannot be written.
    """
    return _kept(path, lambda text: read_key_text(text) is not None, lambda: new_key_text().text)


def kept_login(path: Path) -> str:
    """The name and password, with a colon between, in the file; new ones as `kept_key` has it. Raises `OSError` as that does."""
    return _kept(path, lambda text: 0 < text.find(":") < len(text) - 1, new_login)


def new_login() -> str:
    """Make a name and password, with a colon between."""
    return f"toolfleet:{secrets.token_urlsafe(32)}"


def _kept(path: Path, is_good: Callable[[str], bool], make: Callable[[], str]) -> str:
    try:
        if is_good(found := path.read_text(encoding="ascii").strip()):
            path.chmod(0o600)
            return found
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    made = make()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # of a process that died here, and had our number
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{made}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return made
