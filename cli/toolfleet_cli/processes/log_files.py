"""Finds the logs of the processes that a `toolfleet up` runs, or has run, here or in a folder above."""

from pathlib import Path

from toolfleet_registry.config.run_file import FOLDER, find_running
from toolfleet_registry.errors import FleetError


def log_names(folder: Path) -> list[str]:
    """Return the names of the logs in this folder."""
    return sorted(path.stem for path in folder.glob("*.log"))


def logs_folder(start: Path) -> Path:
    """Return the folder of the running fleet here; else the nearest that one has left.

    Raises `FleetError` if there is none.
    """
    if (found := find_running(start)) is not None:
        return found[0] / "logs"
    candidates = (folder / FOLDER / "logs" for folder in (start, *start.parents))
    folder = next((each for each in candidates if each.is_dir()), None)
    if folder is None:
        raise FleetError("There are no logs: no `toolfleet up` has run here, or in a folder above.")
    return folder
