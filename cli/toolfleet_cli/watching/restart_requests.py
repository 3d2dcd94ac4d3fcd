"""Passes the request to restart a process to a running `up`: as an empty file in its folder, so that who may write there may ask."""

import contextlib
from pathlib import Path

_NAME = "restart"


class RestartRequests:
    """The pending restart requests in the folder of a fleet, its `.toolfleet`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _NAME

    def ask(self, name: str) -> None:
        """Ask for the process of this name, as the run file has it. Raises `OSError` where we may not write."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        (self._folder / name).touch(mode=0o600)

    def take(self) -> list[str]:
        """The names that were asked for since the last time; each is asked for no more."""
        taken: list[str] = []
        with contextlib.suppress(OSError):  # there is no request yet, or an invalid one
            for path in sorted(self._folder.iterdir()):
                path.unlink()
                taken.append(path.name)
        return taken
