"""Finds the `.lua` files of this room."""

from pathlib import Path

from toolfleet_registry.redis.script import ScriptFolder

FILES = ScriptFolder(Path(__file__).parent / "scripts")
"""The scripts below `scripts/`, by folder and name: `store/register`."""

script = FILES.script
