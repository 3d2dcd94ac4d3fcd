"""Describes what a host says of itself while it serves a module, and signs that with a key for this module's name only."""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, field_validator

from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.signing import TextSeal, derived_key

HEARTBEAT_SECONDS = 2.0
"""How often a host says that it is there."""

TTL_SECONDS = 8.0
"""For so long a heartbeat counts: three may be missed, so that no pause of a loaded machine takes a host out."""

LONGEST_TEXT = 8192
"""Characters of a stored heartbeat, beyond which it is not read: ours have less than 1,000, and a URL."""

ANNOUNCE_VARIABLE = "TOOLFLEET_ANNOUNCE_KEY"
"""The environment variable with a host's key for heartbeats; several with commas between them, of which the first signs."""


class Announcement(BaseModel):
    """One heartbeat of the host `id`, which serves `module` at `url`.

    `digest` is one of what it offers, so that hosts that offer the same have the same. `at` is Redis's time in seconds since
    the epoch, and `counter` grows with each heartbeat. `timeout_seconds` is the limit of its calls, `None`: that of its lane.
    `has_shared_store`: as a `Replica` has it. A reader of an earlier version ignores the fields that a later one has added.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    module: str
    id: str = Field(pattern="^[0-9A-Za-z_-]{1,64}$")
    url: str = Field(max_length=2048)
    digest: str = Field(max_length=100)
    at: float = Field(ge=0, allow_inf_nan=False)
    counter: int = Field(ge=0)
    has_shared_store: bool = False
    slow: bool = False
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @field_validator("module")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_module_name(name) or name in {LOCAL, SCHEDULER}:
            raise ValueError("no host can serve a module of this name")
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not is_http_url(url):
            raise ValueError("a host needs an http:// or https:// URL")
        return url.rstrip("/")

    @property
    def mark(self) -> str:
        """A text that changes with every fact that the fleet must learn of at once."""
        facts = self.digest, self.has_shared_store, self.slow, self.timeout_seconds, self.url
        return "|".join(str(fact) for fact in facts).replace(" ", "%20")


def announce_key(signing_key: str, module: str) -> str:
    """Return the key with which a host signs this module's heartbeats: 43 printable characters.

    Raises `SettingsError` without the libraries.
    """
    return urlsafe_b64encode(derived_key(signing_key, _purpose(module))).rstrip(b"=").decode()


def announce_keys(signing_keys: Sequence[str], module: str) -> str:
    """The same for each of the fleet's keys, with commas between them: the value of a `TOOLFLEET_ANNOUNCE_KEY`."""
    return ",".join(announce_key(key, module) for key in signing_keys)


def readers_seal(settings: SigningSettings, module: str) -> TextSeal:
    """Return the seal that verifies a module's heartbeats, for processes that have the fleet's key."""
    return TextSeal(settings.signing_key, purpose=_purpose(module), old_keys=settings.signing_keys_old)


def hosts_seal(keys: str) -> TextSeal:
    """Return the seal that signs a host's heartbeats with these keys; none for "".

    Raises `SettingsError` for an invalid key.
    """
    try:
        return TextSeal.with_keys([_bytes_of(key.strip()) for key in keys.split(",") if key.strip()])
    except (NoBase64, ValueError):
        raise SettingsError(
            f"{ANNOUNCE_VARIABLE} is no key: `toolfleet modules key NAME --announce` prints the one of a module."
        ) from None


def _bytes_of(key: str) -> bytes:
    found = b64decode(f"{key}=", altchars=b"-_", validate=True)
    if len(found) != _KEY_BYTES:
        raise ValueError(len(found))
    return found


def _purpose(module: str) -> str:
    return f"announce {module}"


_KEY_BYTES = 32
