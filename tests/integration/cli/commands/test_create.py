"""`toolfleet create module`: what it makes, and what it refuses."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.command import Run
from support.programs.child_pytest import run_pytest
from toolfleet_cli.commands.create import create_module

ROOT = Path(__file__).parents[4]
LAYOUT = {
    *(".dockerignore", "Dockerfile", "README.md", "__init__.py", "main.py", "manifest.py"),
    *("pyproject.toml", "requirements.txt", "tests/__init__.py", "tests/test_owls.py", "tools.py"),
}


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_module_has_the_layout_of_every_module(run: Run, elsewhere: Path) -> None:
    """All its files are there, nothing of the template is left in them, nothing lies beside the folder, and it says what comes next."""
    ended = run("create", "module", "owls")

    assert ended.code == 0, ended.err
    for command in ("cd owls", "toolfleet up --module .", "toolfleet call owls.greet name=Ada"):
        assert command in ended.out
    assert files_in(elsewhere / "owls") == LAYOUT
    assert [path.name for path in elsewhere.iterdir()] == ["owls"]
    for path in LAYOUT:
        text = (elsewhere / "owls" / path).read_text()
        assert not re.search(r"\$\{?(name|version)|\$\$", text)
        if path.endswith(".py"):
            ast.parse(text)


def test_it_may_be_made_in_another_folder(run: Run, elsewhere: Path) -> None:
    (elsewhere / "services").mkdir()

    assert run("create", "module", "owls", "--directory", "services").code == 0
    assert files_in(elsewhere / "services" / "owls") == LAYOUT
    missing = run("create", "module", "owls", "--directory", "nowhere")
    assert (missing.code, missing.err) == (2, "There is no folder nowhere.\n")


def seen_at(path: Path) -> tuple[int, object]:
    """Which thing has this name, and what is in it."""
    which = path.lstat().st_ino
    if path.is_symlink():
        return which, path.readlink()
    return which, list(path.iterdir()) if path.is_dir() else path.read_text()


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_nothing_is_overwritten(run: Run, elsewhere: Path, what: str) -> None:
    there = elsewhere / "owls"
    match what:
        case "folder":
            there.mkdir()
        case "file":
            there.write_text("mine")
        case _:
            there.symlink_to("nowhere")
    before = seen_at(there)
    ended = run("create", "module", "owls")

    assert ended.code == 2
    assert "owls is there already: choose another name, or another --directory." in ended.err
    assert seen_at(there) == before
    assert list(elsewhere.iterdir()) == [there]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "small letters") for name in ("Owls", "o-w-l", "1owl", "../owls", "", "o" * 51)),
        *((name, "in Python") for name in ("class", "match", "json")),
        *((name, "would hide") for name in ("redis", "toolfleet")),
        *((name, "to the fleet") for name in ("local", "scheduler", "tests")),
    ],
)
def test_a_name_must_be_good_for_python_and_the_fleet(run: Run, elsewhere: Path, name: str, why: str) -> None:
    """One sentence says what is wrong, and nothing is made."""
    ended = run("create", "module", name)

    assert (ended.code, why in ended.err, ended.err.count("\n")) == (2, True, 1)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.fleet
def test_its_tests_pass_whatever_it_is_called(elsewhere: Path) -> None:
    """Also where the name is one that its files use for something else."""
    for name in ("app", "main", "module", "opened", "result", "tools"):
        create_module(name, elsewhere)
    outcome = run_pytest(elsewhere, "-k", "greet")

    assert outcome.counts == {"passed": 12}, outcome.said


def test_what_fails_half_way_leaves_nothing(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="No space"):
        create_module("owls", elsewhere)

    assert list(elsewhere.iterdir()) == []


@pytest.mark.fleet
@pytest.mark.skipif(find_spec("setuptools") is None, reason="no index is asked, so what builds it must be here")
def test_it_is_a_package_that_can_be_installed(elsewhere: Path) -> None:
    """Its own code without the tests, under its name, with what `requirements.txt` asks for."""
    folder = create_module("owls", elsewhere)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "owls"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "."]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("owls-*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()

    assert {name for name in names if name.startswith("owls/")} == {
        f"owls/{part}.py" for part in ("__init__", "main", "manifest", "tools")
    }
    assert f"Requires-Dist: {(folder / 'requirements.txt').read_text().splitlines()[-1]}" in metadata


def test_its_image_has_what_it_runs(elsewhere: Path) -> None:
    """The Dockerfile copies what is there, and starts the app that is there; the image is not run as root."""
    folder = create_module("owls", elsewhere)
    lines = (folder / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY")]
    sdk = tomllib.loads((ROOT / "modules" / "pyproject.toml").read_text())["project"]

    assert copied == ["requirements.txt", "."]
    assert all((folder / path).exists() for path in copied)
    assert any(line.startswith("USER 10001") for line in lines)
    assert '"uvicorn", "owls.main:app"' in lines[-1]
    assert (folder / "requirements.txt").read_text().splitlines()[-1] == f"toolfleet-sdk>={version('toolfleet-sdk')}"
    assert any(each.startswith("uvicorn") for each in sdk["dependencies"])
