"""Reads the values of a host's secrets."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from toolfleet_modules.hosts.secrets import Secrets, SecretUnknown
from toolfleet_registry.config.host_settings import SecretSource
from toolfleet_registry.config.secret_values import secret_value
from toolfleet_registry.errors import SettingsError


def read_secrets(names: Iterable[str], sources: Mapping[str, SecretSource], *, folder: Path) -> Secrets:
    """The secrets of these names; `folder` is where relative files lie. Raises `SettingsError`, which shows no value."""
    try:
        return Secrets({name: secret_value(name, sources, folder=folder) for name in names})
    except SecretUnknown as exc:
        raise SettingsError(str(exc)) from None
