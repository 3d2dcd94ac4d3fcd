"""Signs texts that travel through Redis, and verifies them: HS256, with a key for each purpose. Declares the settings of the keys.

The keys are derived from the fleet's (HKDF-SHA256), so that what was signed for one purpose is worth nothing for another.
"""

import contextlib
import functools
import importlib.util
from collections.abc import Sequence
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings

from toolfleet_registry.config.setting_values import Names, Ordered
from toolfleet_registry.errors import MessageRefused, SettingsError

# Ours have 101 characters. PyJWT looks at each one by itself, so garbage of a megabyte must not come that far.
_LONGEST_SIGNATURE = 256
_ALGORITHM = "HS256"
_KEY_BYTES = 32  # what HS256 asks for
_MOST_KEYS = 1024  # that are kept; deriving one takes some 20 µs

# How the header of a JWS begins: base64 of `{"`. A text of our own that is JSON begins with `{`.
_SIGNED = "eyJ"

_SHORTEST_KEY = 32  # characters
_SIGNS_IN_A_KEY = 8  # different ones: blanks and a repeated letter are no secret


class TextSeal:
    """Signs any text for one `purpose`, and reads it back.

    A signed text is `<header>..<signature> <text>`: a compact JWS with an unencoded detached payload (RFC 7515,
    appendix F; RFC 7797), as base64 would make every text larger by a third. A text signed with one of the `old_keys`
    is read as well. Raises `SettingsError` when it is made with a key and the libraries for that are not installed.
    """

    def __init__(self, signing_key: str | None, *, purpose: str, old_keys: Sequence[str] = ()) -> None:
        keys = () if signing_key is None else (signing_key, *old_keys)
        self._signature = _Signature([derived_key(key, purpose) for key in keys]) if keys else None

    @classmethod
    def with_keys(cls, keys: Sequence[bytes]) -> Self:
        """Make a seal with derived keys of 32 bytes, instead of the fleet's. The first key signs; without keys nothing is signed."""
        if keys:
            need_libraries()
        made = cls(None, purpose="")
        made._signature = _Signature(keys) if keys else None
        return made

    def sign(self, content: str) -> str:
        """Return the text, with the signature before it if there is a key."""
        return content if self._signature is None else f"{self._signature.of(content)} {content}"

    def read(self, message: str) -> str:
        """Return the text that was signed. Raises `MessageRefused`."""
        if self._signature is not None:
            return self._signature.verified(message)
        if message.startswith(_SIGNED):
            raise MessageRefused("The message is signed and cannot be verified here: set TOOLFLEET_SIGNING_KEY.")
        return message


class _Signature:
    """A signature that stands before what it signs. The first of the `keys` signs, and all verify."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        from jwt import PyJWS, PyJWTError  # takes 0.2 s to load, for those who sign

        self._keys = keys
        self._jws = PyJWS(algorithms=[_ALGORITHM])
        self._broken = PyJWTError

    def of(self, content: str) -> str:
        return self._jws.encode(content.encode(), self._keys[0], _ALGORITHM, {"typ": None}, is_payload_detached=True)

    def verified(self, message: str) -> str:
        """Return the content of a signed message; an unverified content is never parsed. Raises `MessageRefused`."""
        signature, separator, content = message.partition(" ")
        if not separator or not signature.startswith(_SIGNED) or len(signature) > _LONGEST_SIGNATURE:
            raise MessageRefused("The message is not signed: its sender needs the fleet's TOOLFLEET_SIGNING_KEY.")
        for key in self._keys:
            with contextlib.suppress(self._broken, ValueError):  # half a character is a ValueError
                # What was verified is what is read.
                return str(self._jws.decode(signature, key, [_ALGORITHM], detached_payload=content.encode()), "utf-8")
        raise MessageRefused("The message was changed, or signed with another TOOLFLEET_SIGNING_KEY.")


def derived_key(signing_key: str, purpose: str) -> bytes:
    """Return the key of one purpose, 32 bytes. Raises `SettingsError` without the libraries."""
    need_libraries()
    return _derived(signing_key, purpose)


def need_libraries() -> None:
    """Raise `SettingsError` if what signs is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("cryptography", "jwt")):
        raise SettingsError("TOOLFLEET_SIGNING_KEY needs PyJWT and cryptography: pip install 'toolfleet[signing]'.")


@functools.lru_cache(_MOST_KEYS)
def _derived(signing_key: str, purpose: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    # No salt: everybody who has the signing key must come to the same keys.
    info = f"toolfleet {purpose}".encode()
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(signing_key.encode())


class SigningSettings(BaseSettings, defer_build=True):
    """Settings of the signing keys, and of what is refused without a signature."""

    signing_key: str | None = Field(default=None, repr=False, min_length=_SHORTEST_KEY)
    """The key that signs calls on their way and all reports about them, and the callers' names in requests to
    modules: at least 32 random characters, the same for agents and workers. None: nothing is signed."""
    signing_keys_old: Ordered[str] = Field(default=(), repr=False)
    """Keys that are accepted, but not used to sign: the previous key or the next one, while a fleet changes its key.
    Comma-separated or JSON."""
    require_signed_results: bool = False
    """Whether unsigned results are refused even while there are workers that do not sign. Set it when all workers
    have been upgraded."""
    remote_control: Names[str] = frozenset()
    """Commands of Celery's remote control that workers obey, in addition to those that change nothing. Everyone who
    reaches the broker can send them."""

    hide_process: bool = True
    """Whether workers, beat, gateways, Flower and `up` hide their environment, which contains all secrets, from other
    programs of the same user. If false, they can leave core dumps, and profilers such as py-spy do not need root."""

    @property
    def signing_keys(self) -> tuple[str, ...]:
        """All keys that count, first the one that signs."""
        return () if self.signing_key is None else (self.signing_key, *self.signing_keys_old)

    @field_validator("signing_key")
    @classmethod
    def _check_signing_key(cls, key: str | None) -> str | None:
        if key is not None and len(set(key)) < _SIGNS_IN_A_KEY:
            raise ValueError("must be random: `openssl rand -base64 32` makes one")
        return key

    @field_validator("signing_keys_old")
    @classmethod
    def _check_old_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if len(key) < _SHORTEST_KEY:
                raise ValueError(f"each key must have at least {_SHORTEST_KEY} characters")
            cls._check_signing_key(key)
        return keys

    @model_validator(mode="after")
    def _check_keys_together(self) -> Self:
        if self.signing_key is None and (self.signing_keys_old or self.require_signed_results):
            raise ValueError(
                "TOOLFLEET_SIGNING_KEYS_OLD and TOOLFLEET_REQUIRE_SIGNED_RESULTS need TOOLFLEET_SIGNING_KEY: nothing is "
                "signed without it"
            )
        return self
