"""Finds the example modules of a clone, and says how each is imported."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from toolfleet_registry.errors import SettingsError

SLOW_EXAMPLES = frozenset({"claude_code", "deployer", "report_builder"})
"""Those that take their time, and so belong to the slow lane."""

_NEEDED = ("fastapi", "uvicorn")


@dataclass(frozen=True, slots=True)
class Example:
    """A module in `folder/modules/<name>`."""

    name: str
    folder: Path

    @property
    def app(self) -> str:
        """As uvicorn wants it, when started in `folder`."""
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
    """`examples/` of the clone that this package is part of; `None` for an installed wheel."""
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
