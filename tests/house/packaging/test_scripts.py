"""What is built of this tree has all that runs, whoever installs it."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[3]
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
SCRIPTS = [path.relative_to(ROOT) for room in ROOMS for path in sorted((ROOT / room).rglob("*.lua"))]
LOADED = """
import json
from pathlib import Path
from support.lua_check import FOLDERS
print(json.dumps([str(each.folder / f"{name}.lua") for each in FOLDERS for name in each.sources if each.file(name)]))
"""


def test_scripts_are_in_a_wheel_and_in_its_sdist(built: Path) -> None:
    """Every `.lua` file of a room is in both artefacts of a distribution."""
    in_wheels = {name for wheel in built.glob("*.whl") for name in ZipFile(wheel).namelist()}
    in_sdists = set[str]()
    for sdist in built.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            in_sdists.update(name.partition("/")[2] for name in archive.getnames())
    installed = {path: path.relative_to(path.parts[0]).as_posix() for path in SCRIPTS}

    assert SCRIPTS
    assert [path for path in SCRIPTS if installed[path] not in in_wheels] == []
    assert [path for path in SCRIPTS if in_sdists.isdisjoint({path.as_posix(), installed[path]})] == []


def test_installed_wheels_find_their_scripts(built: Path, tmp_path: Path) -> None:
    """A process that imports what wheels have brought, and not this tree, reads the scripts that came with it."""
    for wheel in built.glob("*.whl"):
        ZipFile(wheel).extractall(tmp_path)  # noqa: S202 - we have just built it
    path = f"{tmp_path}:{ROOT / 'tests'}"
    ended = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)

    assert {Path(each).relative_to(tmp_path) for each in found} == {path.relative_to(path.parts[0]) for path in SCRIPTS}
