"""Finds the `.lua` files of this room."""

from pathlib import Path

from toolfleet_registry.redis.script import ScriptFolder
from toolfleet_tasks.lua.constants import IN_LUA

FILES = ScriptFolder(Path(__file__).parent / "scripts", IN_LUA)
"""The scripts below `scripts/`, by folder and name: `ledger/claim`."""

script = FILES.script
