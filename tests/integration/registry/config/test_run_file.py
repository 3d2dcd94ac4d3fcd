"""The run file: written whole, found from below, believed only while its process lives."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.there import there
from toolfleet_registry.config.run_file import RunFile, find_run_file
from toolfleet_registry.settings import Settings

OURS = RunFile(pid=os.getpid(), settings={"redis_url": "redis://a", "note": "größe"}, flower_url="http://f")


def test_it_is_found_from_the_folder_and_below(tmp_path: Path) -> None:
    """What was written is what is read; a fleet in a folder hides that of the folder above."""
    assert find_run_file(tmp_path) is None
    assert OURS.write(tmp_path) == tmp_path / ".toolfleet" / "run.json"
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_run_file(tmp_path) == OURS
    assert find_run_file(below) == OURS
    nearer = OURS.model_copy(update={"flower_url": None})
    nearer.write(tmp_path / "a")
    assert find_run_file(below) == nearer


def test_one_of_a_dead_process_is_passed_over(tmp_path: Path) -> None:
    """Killed before it could clean up; the folder above may have a living one."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    OURS.write(tmp_path)
    OURS.model_copy(update={"pid": dead.pid}).write(tmp_path / "a")
    assert find_run_file(tmp_path / "a") == OURS


def test_a_process_of_somebody_else_lives(tmp_path: Path) -> None:
    """We may not signal it, but it is there."""
    OURS.model_copy(update={"pid": 1}).write(tmp_path)
    assert find_run_file(tmp_path) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"pid": "many", "settings": {}}',
        b'{"pid": 0, "settings": {}}',  # would be our own process group
        b'{"pid": -1, "settings": {}}',  # would be everybody
        b'{"pid": 99999999999999999999, "settings": {}}',  # more than a process id can be
        b"\xff",
    ],
)
def test_a_broken_one_is_passed_over(tmp_path: Path, text: bytes) -> None:
    """Half of a file, or somebody else's."""
    path = OURS.write(tmp_path)
    path.write_bytes(text)
    assert find_run_file(tmp_path) is None


def test_a_field_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    """An older command beside a newer `up`."""
    path = OURS.write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace('"pid"', '"later": 1, "pid"'), encoding="utf-8")
    assert find_run_file(tmp_path) == OURS


def test_it_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """In one step."""
    OURS.write(tmp_path)
    newer = OURS.model_copy(update={"flower_url": "http://g"})
    path = newer.write(tmp_path)
    assert find_run_file(tmp_path) == newer
    assert list(path.parent.iterdir()) == [path]


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """A Redis URL may hold a password."""
    assert OURS.write(tmp_path).stat().st_mode & 0o077 == 0


def test_a_time_without_end_is_read_as_it_was_written(tmp_path: Path) -> None:
    """JSON has no number for it."""
    settings = Settings(unserved_seconds=math.inf)
    RunFile(pid=os.getpid(), settings=settings.model_dump(mode="json", exclude_defaults=True)).write(tmp_path)

    found = there(find_run_file(tmp_path))
    assert Settings(**found.settings) == settings
