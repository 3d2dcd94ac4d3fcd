"""Finds the modules that a fleet on one machine serves: the examples of a clone, those in a user's folders, and hosts of any kind."""

import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfleet_registry.config.host_settings import FolderSpec, HostBase
from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.config.setting_sources import find_toml
from toolfleet_registry.contracts.names import LOCAL, RESERVED, is_module_name
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings

SLOW_EXAMPLES = frozenset({"claude_code", "deployer", "report_builder"})
"""The example modules whose tools take long: the slow lane serves them."""

_NEEDED = ("fastapi", "uvicorn")

_OWN_NEEDED = ("starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class Example:
    """A module in `folder/modules/<name>`."""

    name: str
    folder: Path

    @property
    def app(self) -> str:
        """The app's import path for uvicorn in `folder`."""
        return f"modules.{self.name}.main:app"

    @property
    def source(self) -> Path:
        """The folder of its own files."""
        return self.folder / "modules" / self.name


def data_environment(folder: Path) -> dict[str, str]:
    """Return the environment with the data folders of a fleet's example modules: all in the fleet's own folder.

    Background tasks end with the fleet: their results would not be used.
    """
    workspaces = folder / "workspaces"
    return {
        "FILE_MANAGER_ROOT": str(folder / "files"),
        "CLAUDE_CODE_ROOT": str(workspaces),
        "CLAUDE_CODE_OUTLIVE": "false",
        "DEPLOYER_ROOT": str(folder / "deployments"),
        "DEPLOYER_WORKSPACES": json.dumps([str(workspaces)]),
    }


def find_examples_folder() -> Path | None:
    """Return `examples/` of the clone that this package is part of; `None` for an installed wheel."""
    clone = Path(__file__).resolve().parents[3]
    folder = clone / "examples"
    return folder if (clone / "pyproject.toml").is_file() and (folder / "modules").is_dir() else None


def find_examples() -> list[Example]:
    """Return the example modules, sorted by name; none outside of a clone. Raises `SettingsError` for those that could not run."""
    folder = find_examples_folder()
    if folder is None:
        return []
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise SettingsError(f"The example modules need {' and '.join(missing)}: pip install -e '.[worker,examples]'.")
    return [Example(path.parent.name, folder) for path in sorted((folder / "modules").glob("*/main.py"))]


@dataclass(frozen=True, slots=True)
class OwnModule(Example):
    """The package `folder/name`, with the app in its `main`."""

    @property
    def app(self) -> str:
        """The app's import path for uvicorn in `folder`."""
        return f"{self.name}.main:app"

    @property
    def source(self) -> Path:
        """The folder of its own files."""
        return self.folder / self.name


def own_modules(folders: Sequence[Path], known: frozenset[str]) -> list[OwnModule]:
    """Return the modules in these folders; `known` are the names of other modules of the fleet. Raises `SettingsError`."""
    found: dict[str, OwnModule] = {}
    for folder in (each.resolve() for each in folders):
        name = folder.name
        if not (folder / "main.py").is_file():
            raise SettingsError(f"{folder} is no module: it has no main.py. `toolfleet create module NAME` makes one.")
        if not is_module_name(name) or not name.isidentifier() or name == LOCAL:
            raise SettingsError(
                f"{folder} is no module: its name must be one that Python can import, and not {LOCAL!r}."
            )
        if name in found or name in known:
            raise SettingsError(f"There are two modules named {name!r}: {folder} is one of them.")
        found[name] = OwnModule(name, folder.parent)
    if found and (missing := [library for library in _OWN_NEEDED if importlib.util.find_spec(library) is None]):
        raise SettingsError(f"Modules need {' and '.join(missing)}: pip install 'toolfleet[worker,sdk]'.")
    return list(found.values())


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
        """Return the host of a folder of Python files."""
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
    """Return the host of the fleet's own tools, if their folder exists and no host serves it yet."""
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
    if not is_module_name(hosted.name) or hosted.name in RESERVED:
        raise SettingsError(
            f"{hosted.source} cannot be served under its own name: name it in toolfleet.toml, as [hosts.NAME]."
        )
    if twice := [name for name in hosted.processes if name in known]:
        raise SettingsError(f"There are two modules named {twice[0]!r}: one of them is hosted from {hosted.source}.")
