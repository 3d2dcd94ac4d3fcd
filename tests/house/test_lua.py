"""Scripts for Redis stand in `.lua` files, and are checked before Redis sees them."""

from pathlib import Path

import pytest

from support.lua_check import all_faults, faults_in
from toolfleet_registry.redis.script import ScriptFolder


def test_the_lua_of_all_rooms_is_sound() -> None:
    """Each file compiles with what it includes, and uses names that are defined."""
    assert all_faults() == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("return 1 +", "unexpected symbol"),
        ("return redis.call('GET', ledger)", "`ledger` is not defined"),
        ("count = 1 return count", "`count` is global"),
        ("-- keys: ledger\n\nlocal function read() return os.time() end return read()", "`os` is not defined"),
        ("return KEYS[1]", "`KEYS` has a name"),
        ("-- include: nowhere\n\nreturn 1", "there is no 'nowhere'"),
        ("-- keys: ledger..., queue\n\nreturn 1", "comes after a list"),
        ("-- args: type\n\nreturn 1", "`type` cannot be a name"),
    ],
)
def test_a_fault_is_found(text: str, fault: str, tmp_path: Path) -> None:
    """A wrong file has a fault that says what is wrong; the same folder without it has none."""
    (tmp_path / "sound.lua").write_text("-- keys: ledger\n\nreturn redis.call('GET', ledger)\n")
    assert list(faults_in(ScriptFolder(tmp_path))) == []
    (tmp_path / "wrong.lua").write_text(text + "\n")

    assert any(fault in found for found in faults_in(ScriptFolder(tmp_path)))
