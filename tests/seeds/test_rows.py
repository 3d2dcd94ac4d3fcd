"""Keeps the table of what the documents that the project came from ask for: each row has its state, and tests that show it.

A file beside this one is a document: its rows by number, each with what it asks for in our words, whether the project has that, and
where it differs the sentence that says so. A row that something is left out of says what in `later`.
"""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STATES = {"has", "different, better", "comes with the gateway", "open"}
NUMBERS = {
    "http_modules": [f"0.{number}" for number in range(1, 35)],
    "response_tags": [f"1.{number}" for number in range(1, 22)],
    "module_system": [f"3.{number}" for number in range(1, 19)],
    "versioned_registry": [f"4.{number}" for number in range(1, 15)],
    "card": [f"K{number}" for number in range(1, 7)],
}
WITH_THE_GATEWAY = {"0.9", "0.10"}

Row = dict[str, Any]


def rows_of(document: str) -> dict[str, Row]:
    return tomllib.loads((ROOT / "tests" / "seeds" / f"{document}.toml").read_text())


ROWS = {number: row for document in NUMBERS for number, row in rows_of(document).items()}


@cache
def functions_of(path: str) -> frozenset[str]:
    """The names of its functions; a file that is not there has none."""
    file = ROOT / path
    tree = ast.parse(file.read_text() if file.is_file() else "")
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def words_of(path: str) -> str:
    return " ".join((ROOT / path).read_text().split())


@pytest.mark.parametrize("document", NUMBERS)
def test_no_row_is_missing_or_there_twice(document: str) -> None:
    """Each document's rows are all there, in their order; a number that a file has twice cannot be read."""
    assert list(rows_of(document)) == NUMBERS[document]


@pytest.mark.parametrize("number", ROWS)
def test_each_row_is_shown_by_tests_that_exist(number: str) -> None:
    """At least one, and none that was renamed or removed."""
    named = [test.split("::") for test in ROWS[number]["tests"]]

    assert named
    assert [test for path, test in named if not test.startswith("test_") or test not in functions_of(path)] == []


@pytest.mark.parametrize("number", ROWS)
def test_each_row_has_its_state(number: str) -> None:
    """The project has it, or has something better and says so; what is open, or comes later, says what that is."""
    row = ROWS[number]

    assert row.keys() - {"said", "said_in", "later"} == {"item", "state", "tests"}
    assert row["state"] in STATES
    assert (row["state"] == "comes with the gateway") is (number in WITH_THE_GATEWAY)
    assert "said" in row or row["state"] != "different, better"
    assert "later" in row or row["state"] != "open"


@pytest.mark.parametrize("number", [number for number, row in ROWS.items() if "said" in row])
def test_what_differs_is_said_where_the_row_says(number: str) -> None:
    """The document that it names has that sentence."""
    assert ROWS[number]["said"] in words_of(ROWS[number]["said_in"])
