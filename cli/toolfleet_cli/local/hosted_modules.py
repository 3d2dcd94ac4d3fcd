"""Finds the modules that a fleet on one machine hosts: named folders, `[hosts.NAME]`, and the tools next to its data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfleet_registry.config.host_settings import FolderSpec, HostBase
from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.config.setting_sources import find_toml
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings


@dataclass(frozen=True, slots=True)
class HostedModule:
    """A hosted module `name`, with as many processes as there are `replicas`.

    `command` are the words after `toolfleet host`, `source` is where it comes from, `spec` its description, if there is
    one.
    """

    name: str
    command: tuple[str, ...]
    source: Path
    replicas: int = 1
    spec: HostBase | None = None

    @property
    def processes(self) -> list[str]:
        """The names of its processes: `owls`, `owls-2`, and so on."""
        return [self.name, *(f"{self.name}-{number}" for number in range(2, self.replicas + 1))]

    @classmethod
    def of_folder(cls, name: str, folder: Path) -> "HostedModule":
        """A folder of Python files."""
        return cls(name, ("folder", str(folder), "--name", name), folder)


def hosted_modules(
    named: Sequence[Path], settings: Settings, *, start: Path, taken: Iterable[str], not_applied: dict[str, str]
) -> list[HostedModule]:
    """Return the folders that are named, the hosts of the settings, and `.toolfleet/tools` in `start`, if it is there.

    Raises `SettingsError` for a named folder that is none, and for a name that two would have; `taken` are those of other
    modules. A host of the settings that cannot be served is left out, and `not_applied` gets why.
    """
    found, known = list[HostedModule](), set(taken)
    for folder in named:
        found.append(HostedModule.of_folder(folder.resolve().name, folder.resolve()))
        check_hosted(found[-1], known)
        known.update(found[-1].processes)
    found += declared_hosts(settings, start=start, taken=known, not_applied=not_applied)
    if (own := own_tools(start, found)) is not None:
        check_hosted(own, {*known, *(process for each in found for process in each.processes)})
        found.append(own)
    return found


def declared_hosts(
    settings: Settings, *, start: Path, taken: Iterable[str], not_applied: dict[str, str]
) -> list[HostedModule]:
    """Return the hosts of the settings; `not_applied` gets why one is left out, by its module. `taken` are others' names."""
    toml = find_toml(start)
    beside = start if toml is None else toml.parent
    found, known = list[HostedModule](), set(taken)
    for name, spec in sorted(settings.hosts.items()):
        folder = spec.folder if isinstance(spec, FolderSpec) else None
        source = beside.resolve() if folder is None else (beside / folder).resolve()
        each = HostedModule(name, ("run", name), source, spec.replicas, spec)
        try:
            check_hosted(each, known)
        except SettingsError as exc:
            not_applied[name] = f"[hosts.{name}]: {exc} Correct that and save toolfleet.toml: it is applied then."
            continue
        found.append(each)
        known.update(each.processes)
    return found


def own_tools(start: Path, hosted: Iterable[HostedModule]) -> HostedModule | None:
    """The fleet's own tools, if their folder is there and none of these serves it already."""
    own = own_folder(start)
    if not own.is_dir() or any(each.source == own for each in hosted):
        return None
    return HostedModule.of_folder(own.name, own)


def own_folder(start: Path) -> Path:
    """Return the folder of a fleet's own tools."""
    return start.resolve() / FOLDER / "tools"


def check_hosted(hosted: HostedModule, known: Iterable[str]) -> None:
    """Raise `SettingsError` for what cannot be served, also as there is another module or process of these names."""
    if not hosted.source.exists() or (hosted.command[0] == "folder" and not hosted.source.is_dir()):
        raise SettingsError(f"There is no tool folder {hosted.source}.")
    if not is_module_name(hosted.name) or hosted.name in {LOCAL, SCHEDULER}:
        raise SettingsError(
            f"{hosted.source} cannot be served under its own name: name it in toolfleet.toml, as [hosts.NAME]."
        )
    if twice := [name for name in hosted.processes if name in known]:
        raise SettingsError(f"There are two modules named {twice[0]!r}: one of them is hosted from {hosted.source}.")
