"""The recipes of CONTRIBUTING.md and the table of SECURITY.md name files: all of them are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"`((?:registry|modules|tasks|workers|cli|tests|benchmarks|docs)/?[\w/.-]*)`")


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_path_that_is_named_is_there(document: str) -> None:
    """Whoever moves a file reads the recipe that leads to it."""
    named = set(_PATH.findall((ROOT / document).read_text()))

    assert len(named) > 15
    assert sorted(path for path in named if not (ROOT / path).exists()) == []
