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
ROOMS = ("registry", "tasks", "workers")
SOURCES = sorted(
    path
    for room in (*ROOMS, "examples", "benchmarks", "tests")
    for path in (ROOT / room).rglob("*.py")
    if not path.is_relative_to(ROOT / "benchmarks" / ".envs")  # other people's code, installed
)
MAX_LINES = 300
MAX_TEST_LINES = 500
MAX_FUNCTION_LINES = 40
MAX_README_LINES = 40


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    """A file has at most 300 lines, a test file 500, a function 40; and each says in a docstring what it knows."""
    text = path.read_text()
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES]

    assert text.count("\n") <= (MAX_TEST_LINES if path.is_relative_to(ROOT / "tests") else MAX_LINES)
    assert too_long == []
    assert not text or ast.get_docstring(tree)


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
