"""What tests of programs share: where their folders are made, and a mark to find them by."""

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where working folders are made: none outlives its program."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it remembers the first answer
    yield scratch
    assert list(scratch.iterdir()) == []


@pytest.fixture
def mark() -> str:
    return f"mark-{secrets.token_hex(8)}"
