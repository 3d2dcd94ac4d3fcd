"""Builds the host that `[hosts.NAME]` in `toolfleet.toml` describes, of any kind."""

from pathlib import Path

from toolfleet_cli.hosting.folder import folder_host
from toolfleet_cli.hosting.openapi import openapi_host
from toolfleet_modules.sdk.module import ServedModule
from toolfleet_registry.config.host_settings import FolderSpec, McpSpec
from toolfleet_registry.config.setting_sources import find_toml
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings


def named_host(settings: Settings, name: str, *, start: Path) -> ServedModule:
    """Return the host of this name; relative paths start at the folder of the `toolfleet.toml` that is nearest to `start`. Raises `SettingsError`."""
    spec = settings.hosts.get(name)
    if spec is None:
        known = ", ".join(sorted(settings.hosts)) or "none"
        raise SettingsError(f"There is no [hosts.{name[:80]}] in {toml_folder(start)}; there are: {known}.")
    beside = toml_folder(start)
    if isinstance(spec, McpSpec):
        from toolfleet_cli.hosting.mcp import mcp_host

        return mcp_host(settings, spec, name=name, beside=beside)
    if isinstance(spec, FolderSpec):
        folder = None if spec.folder is None else beside / spec.folder
        return folder_host(settings, folder, beside=beside, name=name)
    return openapi_host(settings, name, spec, folder=beside)


def toml_folder(start: Path) -> Path:
    """Return the folder of the `toolfleet.toml` that applies in `start`; `start` if there is none."""
    toml = find_toml(start)
    return start if toml is None else toml.parent
