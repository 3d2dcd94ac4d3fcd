"""Builds toolfleet-sdk: adds the files of other rooms, which `pyproject.toml` lists, to its wheel and its sdist."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class OtherRooms(BuildHookInterface[Any]):
    """Takes each path from the room where it is, without the room's name. An sdist has all of them in its own folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Do so before a build, but for an editable one, which reads the rooms themselves."""
        folder = Path(self.root)
        if version == "editable" or (folder / "PKG-INFO").exists():
            return
        for path in self.config["other-rooms"]:
            build_data["force_include"][str(folder.parent / path)] = path.partition("/")[2]
