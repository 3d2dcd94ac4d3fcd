"""Finds the scripts of this room that run inside Redis: each does all of its work at once, or nothing."""

from pathlib import Path

from toolfleet_registry.redis.script import ScriptFolder

FILES = ScriptFolder(Path(__file__).parent / "lua")
"""The scripts below `lua/`, by folder and name: `store/register`."""

script = FILES.script
