"""The house keeps its own rules: rooms, files, the public face."""

import ast
from pathlib import Path

import pytest

import toolfleet
import toolfleet.formats
import toolfleet.sdk
import toolfleet.tags
import toolfleet.webhooks

ROOT = Path(__file__).parents[2]
ROOMS = ("registry", "modules", "tasks", "workers", "gateway", "cli")
SOURCES = sorted(
    path
    for room in (*ROOMS, "examples", "benchmarks", "docsite", "tests")
    for path in (ROOT / room).rglob("*.py")
    if not path.is_relative_to(ROOT / "benchmarks" / ".envs")  # other people's code, installed
)
MAX_README_LINES = 25
RE_EXPORTED = (
    "registry/toolfleet_registry/contracts/__init__.py",
    "registry/toolfleet_registry/formats/__init__.py",
)


def test_each_file_says_what_it_knows() -> None:
    """Each file that is not empty begins with a docstring."""
    assert [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if (text := path.read_text()) and not ast.get_docstring(ast.parse(text))
    ] == []


def test_a_folder_of_a_room_says_in_one_docstring_what_it_does() -> None:
    """Its `__init__.py` holds nothing else, so that importing a module costs that module."""
    found = [path for room in ROOMS for path in (ROOT / room).glob("toolfleet_*/*/**/__init__.py")]
    kept = {ROOT / name for name in RE_EXPORTED}

    assert [str(path) for path in found if path not in kept and len(ast.parse(path.read_text()).body) != 1] == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_readme_of_a_screen(room: str) -> None:
    """It says what the room knows, and fits on a screen, but for the table of its parts, which `make docs` writes."""
    lines = (ROOT / room / "README.md").read_text().splitlines()

    assert 5 < len([line for line in lines if not line.startswith("| `")]) <= MAX_README_LINES


def test_there_are_no_rooms_for_strangers() -> None:
    assert {path.stem for path in SOURCES}.isdisjoint({"utils", "util", "helpers", "common", "misc", "base"})


@pytest.mark.parametrize("face", [toolfleet, toolfleet.formats, toolfleet.sdk, toolfleet.tags, toolfleet.webhooks])
def test_the_face_re_exports_a_sorted_list_and_holds_nothing_else(face: object) -> None:
    """What an agent imports is in `__all__`, sorted, and defined elsewhere."""
    names: list[str] = face.__all__  # type: ignore[attr-defined] # both have it
    source = Path(str(face.__file__)).read_text()  # type: ignore[attr-defined] # both are files

    assert names == sorted(names)
    assert all(hasattr(face, name) for name in names)
    assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(ast.parse(source)))
