"""The key that a folder keeps for the gateways of its fleet."""

from pathlib import Path

import pytest

from toolfleet_gateway.auth.kept_key import kept_key
from toolfleet_registry.access.key_text import read_key_text


def test_a_key_is_made_once(tmp_path: Path) -> None:
    """It is one that gateways take, it is the same each time, and nobody else reads it, whatever became of the file."""
    file = tmp_path / "gateway-key"
    made = kept_key(file)
    assert read_key_text(made) is not None
    assert file.stat().st_mode & 0o777 == 0o600

    file.chmod(0o644)
    assert kept_key(file) == made
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["gateway-key"]


@pytest.mark.parametrize("content", [b"", b"tfk_0123456789ab_cut", b"\xff\xfe"])
def test_a_file_without_a_key_gets_one(tmp_path: Path, content: bytes) -> None:
    """One that was cut short, or written by hand."""
    file = tmp_path / "gateway-key"
    file.write_bytes(content)
    made = kept_key(file)

    assert read_key_text(made) is not None
    assert (kept_key(file), file.read_text()) == (made, f"{made}\n")
    assert file.stat().st_mode & 0o777 == 0o600
