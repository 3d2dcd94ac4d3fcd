"""Reads the secrets that sign what channels of approvals send and receive."""

from collections.abc import Mapping
from pathlib import Path

from toolfleet_registry.config.host_settings import SecretSource
from toolfleet_registry.config.job_settings import secret_fault
from toolfleet_registry.config.secret_value import secret_value
from toolfleet_registry.config.setting_sources import find_toml
from toolfleet_registry.errors import SettingsError


def channel_secret(name: str, sources: Mapping[str, SecretSource]) -> str:
    """Return the Standard Webhooks secret of this name; relative files are resolved next to `toolfleet.toml`.

    Raises `SettingsError`.
    """
    toml = find_toml(Path.cwd())
    value = secret_value(name, sources, folder=Path.cwd() if toml is None else toml.parent)
    if (fault := secret_fault(value)) is not None:
        raise SettingsError(f"The secret {name} {fault}.")
    return value
