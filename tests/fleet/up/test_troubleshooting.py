"""The page `docs/troubleshooting.md`: its commands print what it shows, and the reference leaves no error code out."""

import re
from pathlib import Path
from typing import get_args

import pytest

from support.troubleshooting_session import PAGE, plain, session
from toolfleet_registry.contracts import ErrorCode

_CODE = re.compile(r"^## `(\w+)`$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pages_commands_print_what_it_shows(tmp_path: Path) -> None:
    """Run anew against a fleet and its modules, they say the same, but for times and addresses."""
    assert plain(session(tmp_path, patience_seconds=20)) == plain(PAGE.read_text())


def test_the_reference_has_every_error_code_once_with_what_a_person_does() -> None:
    page = (PAGE.parent / "reference" / "error-codes.md").read_text()

    assert _CODE.findall(page) == list(get_args(ErrorCode))
    assert page.count("- **A person does:** ") == len(get_args(ErrorCode))
