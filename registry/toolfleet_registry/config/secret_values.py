"""Reads the values of secrets: from the environment, a file, or a program that prints them."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from toolfleet_registry.config.host_settings import SecretSource
from toolfleet_registry.config.job_settings import secret_fault
from toolfleet_registry.config.setting_sources import find_toml
from toolfleet_registry.errors import SettingsError

_COMMAND_SECONDS = 30.0
_MOST_BYTES = 64 * 2**10


def secret_value(name: str, sources: Mapping[str, SecretSource], *, folder: Path) -> str:
    """The value; `folder` is where relative files lie. Raises `SettingsError`, which does not show it."""
    source = sources.get(name) or SecretSource(variable=name)
    if source.variable is not None:
        if source.variable not in os.environ:
            raise SettingsError(f"The secret {name} is not there: the variable {source.variable} is not set.")
        return os.environ[source.variable]
    data = _content(name, folder / source.file) if source.file is not None else _printed(name, source.command, folder)
    if len(data) > _MOST_BYTES:
        raise SettingsError(f"The secret {name} has more than {_MOST_BYTES} bytes.")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SettingsError(f"The secret {name} is no text in UTF-8.") from None


def _content(name: str, file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_MOST_BYTES + 1)
    except OSError as exc:
        raise SettingsError(f"The secret {name} cannot be read from {file}: {exc.strerror}.") from None


def _printed(name: str, command: tuple[str, ...], folder: Path) -> bytes:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"no end within {_COMMAND_SECONDS:g} s"
        raise SettingsError(f"The program for the secret {name} cannot be run: {reason}.") from None
    if done.returncode:
        raise SettingsError(f"The program for the secret {name} ended with {done.returncode}.")
    return done.stdout


def channel_secret(name: str, sources: Mapping[str, SecretSource]) -> str:
    """Return the Standard Webhooks secret of this name; relative files are resolved next to `toolfleet.toml`.

    Raises `SettingsError`.
    """
    toml = find_toml(Path.cwd())
    value = secret_value(name, sources, folder=Path.cwd() if toml is None else toml.parent)
    if (fault := secret_fault(value)) is not None:
        raise SettingsError(f"The secret {name} {fault}.")
    return value
