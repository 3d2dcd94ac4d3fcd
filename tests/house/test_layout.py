"""The house keeps its own rules: rooms, files, the public face."""

import ast
from collections import Counter
from collections.abc import Iterator
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
MAX_LINES = 300
MAX_TEST_LINES = 500
MAX_FUNCTION_LINES = 40
MAX_README_LINES = 40
MAX_MODULES = 16
RE_EXPORTED = (
    "registry/toolfleet_registry/contracts/__init__.py",
    "registry/toolfleet_registry/formats/__init__.py",
    "registry/toolfleet_registry/store/__init__.py",
)


def test_files_and_functions_stay_small() -> None:
    """A file has at most 300 lines, a test file 500, a function 40; and each says in a docstring what it knows."""
    assert [fault for path in SOURCES for fault in _faults(path)] == []


def test_a_folder_has_at_most_16_modules() -> None:
    """Whoever opens one sees all of it."""
    counted = Counter(str(path.parent.relative_to(ROOT)) for path in SOURCES if path.name != "__init__.py")

    assert {folder for folder, count in counted.items() if count > MAX_MODULES} == set()


def test_a_folder_of_a_room_says_in_one_docstring_what_it_does() -> None:
    """Its `__init__.py` holds nothing else, so that importing a module costs that module."""
    found = [path for room in ROOMS for path in (ROOT / room).glob("toolfleet_*/*/**/__init__.py")]
    kept = {ROOT / name for name in RE_EXPORTED}

    assert [str(path) for path in found if path not in kept and len(ast.parse(path.read_text()).body) != 1] == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_readme_of_a_screen(room: str) -> None:
    """It says what the room knows, and fits on a screen."""
    assert 5 < len((ROOT / room / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_there_are_no_rooms_for_strangers() -> None:
    """No file collects what belongs nowhere."""
    assert {path.stem for path in SOURCES}.isdisjoint({"utils", "util", "helpers", "common", "misc", "base"})


@pytest.mark.parametrize("face", [toolfleet, toolfleet.formats, toolfleet.sdk, toolfleet.tags, toolfleet.webhooks])
def test_the_face_re_exports_a_sorted_list_and_holds_nothing_else(face: object) -> None:
    """What an agent imports is in `__all__`, sorted, and defined elsewhere."""
    names: list[str] = face.__all__  # type: ignore[attr-defined] # both have it
    source = Path(str(face.__file__)).read_text()  # type: ignore[attr-defined] # both are files

    assert names == sorted(names)
    assert all(hasattr(face, name) for name in names)
    assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(ast.parse(source)))


def _faults(path: Path) -> Iterator[str]:
    text, name = path.read_text(), path.relative_to(ROOT)
    tree = ast.parse(text)
    if (lines := text.count("\n")) > (MAX_TEST_LINES if name.parts[0] == "tests" else MAX_LINES):
        yield f"{name} has {lines} lines"
    if text and not ast.get_docstring(tree):
        yield f"{name} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{name}: {node.name} has {lines} lines"
