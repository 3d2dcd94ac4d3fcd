"""Finds the modules in a user's folders, as `toolfleet create module` makes them, for `up` to serve."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfleet_cli.local.examples import Example
from toolfleet_registry.contracts.names import LOCAL, is_module_name
from toolfleet_registry.errors import SettingsError

_NEEDED = ("starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class OwnModule(Example):
    """The package `folder/name`, whose `main` has the app."""

    @property
    def app(self) -> str:
        """As uvicorn wants it, when started in `folder`."""
        return f"{self.name}.main:app"

    @property
    def source(self) -> Path:
        """The folder of its own files."""
        return self.folder / self.name


def own_modules(folders: Sequence[Path], known: frozenset[str]) -> list[OwnModule]:
    """The modules in these folders; `known` are the names of others in the fleet. Raises `SettingsError`."""
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
    if found and (missing := [library for library in _NEEDED if importlib.util.find_spec(library) is None]):
        raise SettingsError(f"Modules need {' and '.join(missing)}: pip install 'toolfleet[worker,sdk]'.")
    return list(found.values())
