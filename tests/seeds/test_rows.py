"""Keeps the table of what the documents that the project came from ask for: each row has its state, and tests that show it.

A file beside this one is a document. A row has what the document asks for, in our words; its state; and in `shown` tests, each with
the words of its assertions that show the row: who changes what a test shows, changes the row, or finds another test for it.

- `has`: as the document asks for it. `different`: otherwise, for a reason that `said_in` gives. `left out`: not at all, for such a reason.
- `open`: not yet; `later` says what is missing. Its tests here are expected to fail, and one that passes has the row changed.
- `inside`: why no test at a door of the fleet shows it.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from seeds.rows import DOCUMENTS, ROWS, rows_of
from tiers import SHORT, TARGETS, tier_of

ROOT = Path(__file__).parents[2]
STATES = {"has", "different", "left out", "open"}
DOORS = (
    *("tests/seeds/", "tests/fleet/", "tests/virtual/", "tests/fundamentals/", "tests/examples/", "tests/house/"),
    *("tests/integration/cli/", "tests/integration/gateway/", "tests/integration/registry/store/"),
)
"""Where tests use the fleet as its users do: by its client, its commands, its routes, its modules and its documents."""
SHOWN = [(number, test, words) for number, row in ROWS.items() for test, words in row["shown"].items()]

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def function_of(test: str) -> Function:
    """The function that pytest collects under this name."""
    path, _, name = test.partition("::")
    assert (ROOT / path).is_file(), f"{path} is not there"
    found = [node for node in tree_of(path).body if isinstance(node, Function) and node.name == name]
    assert name.startswith("test_"), name
    assert Path(path).name.startswith("test_"), path
    assert len(found) == 1, f"{path} has no {name}"
    return found[0]


def plain(text: str) -> str:
    """Without what a formatter may change."""
    return "".join(text.split()).replace('"', "'").replace(",)", ")").replace(",]", "]").replace(",}", "}")


def asserted(test: str) -> str:
    """What it asserts, waits for, or expects to be raised; and the table that it is run with."""
    function, constants = function_of(test), dict[str, ast.expr]()
    for line in tree_of(test.partition("::")[0]).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            constants[line.targets[0].id] = line.value
    said = list[ast.AST](function.decorator_list)
    said += [
        constants[name.id]
        for each in function.decorator_list
        for name in ast.walk(each)
        if isinstance(name, ast.Name) and name.id in constants
    ]
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            said += [node.test]
        elif isinstance(node, ast.With | ast.AsyncWith):
            said += [item.context_expr for item in node.items]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Await | ast.Call):
            said += [node.value]
    return plain("\n".join(map(ast.unparse, said)))


def is_short(test: str) -> bool:
    """Whether `make test` or `make test-fleet` runs it: its file and it have no mark of another tier."""
    marked = {
        tier
        for each in function_of(test).decorator_list
        for tier in TARGETS
        if ast.unparse(each) == f"pytest.mark.{tier}"
    }
    return (marked or {tier_of(ROOT / test.partition("::")[0])}) <= set(SHORT)


@cache
def words_of(path: str) -> str:
    return " ".join((ROOT / path).read_text().split())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_row_is_missing_or_there_twice(document: str) -> None:
    """Each document's rows are all there, in their order; a number that a file has twice cannot be read."""
    assert list(rows_of(document)) == DOCUMENTS[document]


def test_there_are_126_rows() -> None:
    """Of the five documents and the card."""
    assert len(ROWS) == 126


@pytest.mark.parametrize(
    ("number", "test", "words"), SHOWN, ids=[f"{number}-{test.partition('::')[2]}" for number, test, _ in SHOWN]
)
def test_each_row_is_shown_by_what_a_test_asserts(number: str, test: str, words: str | list[str]) -> None:
    """The words of the row stand in an assertion of the test, in its table, or in what it waits for."""
    said = asserted(test)

    assert [each for each in ([words] if isinstance(words, str) else words) if plain(each) not in said] == []


def test_only_assertions_show_a_row() -> None:
    """Neither a docstring nor what a test does before it asserts counts."""
    own = f"tests/seeds/test_rows.py::{test_only_assertions_show_a_row.__name__}"
    done = plain("f'tests/seeds/test_rows.py::")

    assert plain("done not in asserted(own)") in asserted(own)
    assert done not in asserted(own)


@pytest.mark.parametrize("number", ROWS)
def test_each_row_is_shown_at_a_door_by_a_test_that_changes_must_pass(number: str) -> None:
    """One of its tests is in a short tier and uses the fleet as its users do; or the row says why that cannot be."""
    tests = [test for test in ROWS[number]["shown"] if is_short(test)]

    assert tests
    assert "inside" in ROWS[number] or any(test.startswith(DOORS) for test in tests)


@pytest.mark.parametrize("number", ROWS)
def test_each_row_has_its_state(number: str) -> None:
    """What differs or is left out has the sentence that says so; what is open says what is missing, and has a test here that fails."""
    row = ROWS[number]

    assert row.keys() - {"said", "said_in", "later", "inside"} == {"item", "state", "shown"}
    assert row["state"] in STATES
    assert ("said" in row) >= (row["state"] in {"different", "left out"})
    assert ("later" in row) is (row["state"] == "open")
    assert row["state"] != "open" or any(test.startswith("tests/seeds/") for test in row["shown"])


@pytest.mark.parametrize("number", [number for number, row in ROWS.items() if "said" in row])
def test_what_differs_is_said_where_the_row_says(number: str) -> None:
    """The document that it names has that sentence."""
    assert ROWS[number]["said"] in words_of(ROWS[number]["said_in"])
