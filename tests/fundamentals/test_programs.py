"""The tutorial: each program in `programs/` runs beside one fleet, and prints what stands at its end."""

import runpy
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from support.up import Up, up
from support.waiting import wait_for_a_whole_day

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
CONTENTS = tomllib.loads((PROGRAMS / "contents.toml").read_text())["chapters"]
NAMES = [f"{chapter['folder']}/{name}" for chapter in CONTENTS for name in chapter["programs"]]
PRINTING = [name for name in NAMES if "/test_" not in name]  # the others are tests, which pytest finds by itself
MAX_LINES = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The fleet that the tutorial begins with, started as its reader starts it."""
    folder = tmp_path_factory.mktemp("tutorial") / "fleet"
    shutil.copytree(HERE / "fleet", folder)
    with up(folder, None, "--module", "owls", "--no-gateway") as fleet:
        yield fleet


@pytest.mark.parametrize("name", PRINTING)
def test_a_program_prints_what_it_says(
    name: str, running: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole and as it stands, in the fleet's folder, where it finds the fleet without a setting."""
    wait_for_a_whole_day()
    program = PROGRAMS / f"{name}.py"
    monkeypatch.chdir(running.folder)
    monkeypatch.delenv("TOOLFLEET_UNSERVED_SECONDS")
    structlog.reset_defaults()  # a program of its own has configured nothing, whatever ran here before

    runpy.run_path(str(program), run_name="__main__")

    assert capsys.readouterr().out == _promised(program)


def test_the_contents_name_each_program_once() -> None:
    """In the order in which they are read; none is forgotten."""
    assert sorted(NAMES) == sorted(str(path.relative_to(PROGRAMS).with_suffix("")) for path in PROGRAMS.glob("*/*.py"))


def test_a_program_fits_on_a_screen() -> None:
    """With what it prints, so that a reader can copy it."""
    assert [name for name in NAMES if len((PROGRAMS / f"{name}.py").read_text().splitlines()) > MAX_LINES] == []


def _promised(program: Path) -> str:
    _, _, lines = program.read_text().partition("# It prints:\n")
    assert lines, f"{program} does not say what it prints"
    return "".join(line.removeprefix("#").removeprefix(" ") for line in lines.splitlines(keepends=True))
