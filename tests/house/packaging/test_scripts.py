"""What is built of this tree has all that runs, whoever installs it."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("registry", "modules", "tasks", "workers", "cli")
SCRIPTS = [path.relative_to(ROOT) for room in ROOMS for path in sorted((ROOT / room).rglob("*.lua"))]
LOADED = """
import json
from pathlib import Path
from support.lua_check import FOLDERS
print(json.dumps([str(each.folder / f"{name}.lua") for each in FOLDERS for name in each.sources if each.script(name).text]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, timeout=120)
    return folder


def test_scripts_are_in_the_wheel_and_in_the_sdist(built: Path) -> None:
    """Every `.lua` file of a room is in both."""
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    in_wheel = set(ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}

    assert SCRIPTS
    assert [path for path in SCRIPTS if path.relative_to(path.parts[0]).as_posix() not in in_wheel] == []
    assert [path for path in SCRIPTS if path.as_posix() not in in_sdist] == []


def test_an_installed_wheel_finds_its_scripts(built: Path, tmp_path: Path) -> None:
    """A process that imports what a wheel has brought, and not this tree, reads the scripts that came with it."""
    (wheel,) = built.glob("*.whl")
    ZipFile(wheel).extractall(tmp_path)  # noqa: S202 - we have just built it
    path = f"{tmp_path}:{ROOT / 'tests'}"
    ended = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(ended.stdout)

    assert {Path(each).relative_to(tmp_path) for each in found} == {path.relative_to(path.parts[0]) for path in SCRIPTS}
