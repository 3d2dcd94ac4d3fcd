"""Declares the settings of keys that sign what travels through Redis; a part of `Settings`."""

from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings

from toolfleet_registry.config.setting_values import Names, Ordered

_SHORTEST_KEY = 32  # characters
_SIGNS_IN_A_KEY = 8  # different ones: blanks and a repeated letter are no secret


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
