"""A module's files, and whether they have changed."""

import os
from pathlib import Path

from toolfleet_cli.commands.up import SourceWatch


def test_a_change_is_told_once_it_is_whole(tmp_path: Path) -> None:
    """Not while the files still change, and not twice; a new file and a removed one are changes as well."""
    (tmp_path / "below").mkdir()
    (tmp_path / "main.py").write_text("1")
    watch = SourceWatch(tmp_path)
    assert not watch.has_changed()

    (tmp_path / "main.py").write_text("1 + 1")
    assert not watch.has_changed()
    (tmp_path / "below" / "tools.py").write_text("2")
    assert not watch.has_changed()
    assert watch.has_changed()
    assert not watch.has_changed()

    (tmp_path / "below" / "tools.py").unlink()
    assert [watch.has_changed() for _ in range(3)] == [False, True, False]


def test_what_a_module_writes_itself_is_no_change(tmp_path: Path) -> None:
    """Its data, its bytecode, and what lies in hidden folders; a file that changes back neither."""
    (tmp_path / "main.py").write_text("1")
    was = (tmp_path / "main.py").stat()
    watch = SourceWatch(tmp_path)
    for name in ("data.json", "__pycache__/main.py", ".venv/site.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [watch.has_changed() for _ in range(3)] == [False] * 3

    (tmp_path / "main.py").write_text("22")
    assert not watch.has_changed()
    (tmp_path / "main.py").write_text("1")
    os.utime(tmp_path / "main.py", ns=(was.st_atime_ns, was.st_mtime_ns))
    assert [watch.has_changed() for _ in range(2)] == [False] * 2
