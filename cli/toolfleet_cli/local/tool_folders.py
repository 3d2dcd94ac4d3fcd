"""Finds the tool folders that a fleet on one machine serves: those that are named, and the one beside its data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.config.setting_sources import find_toml
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings


@dataclass(frozen=True, slots=True)
class ToolFolder:
    """A folder of Python files, which is served as the module `name`."""

    name: str
    folder: Path


def tool_folders(named: Sequence[Path], settings: Settings, *, start: Path, taken: Iterable[str]) -> list[ToolFolder]:
    """The folders that are named, those of the settings, and `.toolfleet/tools` in `start`, if it is there.

    Raises `SettingsError` for a folder that is none, and for a name that two would have; `taken` are those of other modules.
    """
    toml = find_toml(start)
    beside = start if toml is None else toml.parent
    found = [ToolFolder(folder.resolve().name, folder.resolve()) for folder in named]
    found += [ToolFolder(name, (beside / spec.folder).resolve()) for name, spec in sorted(settings.hosts.items())]
    own = own_folder(start)
    if own.is_dir() and all(each.folder != own for each in found):
        found.append(ToolFolder(own.name, own))
    known = set(taken)
    for each in found:
        if not each.folder.is_dir():
            raise SettingsError(f"There is no tool folder {each.folder}.")
        if not is_module_name(each.name) or each.name in {LOCAL, SCHEDULER}:
            raise SettingsError(
                f"{each.folder} cannot be served under its own name: name it in toolfleet.toml, as [hosts.NAME]."
            )
        if each.name in known:
            raise SettingsError(
                f"There are two modules named {each.name!r}: the tool folder {each.folder} is one of them."
            )
        known.add(each.name)
    return found


def own_folder(start: Path) -> Path:
    """Where a fleet's own tools lie."""
    return start.resolve() / FOLDER / "tools"
