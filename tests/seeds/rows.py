"""Reads the table of what the documents that the project came from ask for: a file for each document, a table for each row."""

import tomllib
from pathlib import Path
from typing import Any, Final

Row = dict[str, Any]

DOCUMENTS: Final = {
    "http_modules": [f"0.{number}" for number in range(1, 35)],
    "response_tags": [f"1.{number}" for number in range(1, 22)],
    "tool_folders": [f"2.{number}" for number in range(1, 34)],
    "module_system": [f"3.{number}" for number in range(1, 19)],
    "versioned_registry": [f"4.{number}" for number in range(1, 15)],
    "card": [f"K{number}" for number in range(1, 7)],
}
"""The rows of each document, in their order."""


def rows_of(document: str) -> dict[str, Row]:
    """Read the rows of one document."""
    return tomllib.loads(Path(__file__).with_name(f"{document}.toml").read_text())


ROWS: Final = {number: row for document in DOCUMENTS for number, row in rows_of(document).items()}
