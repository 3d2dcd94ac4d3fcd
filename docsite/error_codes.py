"""Writes the page of all error codes: what each means for a program, a model and a person."""

import re
from typing import get_args

from docsite.wrapping import wrapped
from toolfleet_registry.contracts.calls import ErrorCode

_HEAD = """# Error codes

A result that is no success has one of these codes in `error_code`. Beside it stand `effect_state` (whether something
has happened: `none`, `done` or `unknown`), `retryable` (whether the same call may be made again), perhaps
`retry_after_seconds` (when), and `hint` (the sentence for the model). Where a code has several hints, the one here is
that of a tool that declares no effect.
"""
_ROW = re.compile(r"^\| `(?P<code>\w+)` \| (?P<hint>[^|]+) \| (?P<person>[^|]+) \|$", re.MULTILINE)


def error_codes_page(troubleshooting: str) -> str:
    """Return the page; the words are those of the table in the page on troubles. Raises KeyError for a missing code."""
    rows = {row["code"]: row for row in _ROW.finditer(troubleshooting)}
    return wrapped("\n".join([_HEAD, *(_entry(rows[code]) for code in get_args(ErrorCode))]))


def _entry(row: re.Match[str]) -> str:
    person = row["person"].replace("](#", "](../troubleshooting.md#")
    return f"## `{row['code']}`\n\n- **A model is told:** {row['hint']}\n- **A person does:** {person}\n"
