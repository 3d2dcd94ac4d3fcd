"""Four levels, and which side an unknown one falls to."""

import itertools
from pathlib import Path

import pytest
from pydantic import ValidationError

from toolfleet_registry.contracts import Caller, Level
from toolfleet_registry.contracts.names import ARTIFACTS
from toolfleet_registry.permissions import Permission, level_of_caller, level_of_tool, permits, reaches
from toolfleet_registry.settings import Settings

LEVELS = ["guest", "user", "admin", "owner"]
UNKNOWN = ["", "Admin", "OWNER", " owner", "superuser", "3", "guest\n"]


@pytest.mark.parametrize(("have", "need"), list(itertools.product(LEVELS, LEVELS)))
def test_a_level_permits_itself_and_all_below(have: str, need: str) -> None:
    """Guest < user < admin < owner."""
    assert permits(have, need) == (LEVELS.index(have) >= LEVELS.index(need))


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_an_unknown_caller_is_a_guest(unknown: str) -> None:
    """A typo gives no rights."""
    assert level_of_caller(unknown) is Permission.GUEST
    assert permits(unknown, "guest")
    assert not any(permits(unknown, need) for need in LEVELS[1:])


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_an_unknown_level_closes_a_tool(unknown: str) -> None:
    """A typo opens nothing, not even to those of the same level."""
    assert level_of_tool(unknown) is None
    assert not any(permits(have, unknown) for have in [*LEVELS, unknown])


def test_modules_are_reached_by_name_or_all() -> None:
    """A star stands for all, and is no pattern otherwise."""
    assert reaches("git", frozenset({"git", "mail"}))
    assert reaches("git", "*")
    assert not reaches("git", frozenset({"mail"}))
    assert not reaches("git", frozenset())
    assert not reaches("git", frozenset({"*"}))


def test_a_module_is_open_to_all_only_where_it_is_the_fleets_own(tmp_path: Path) -> None:
    """Without a store, `artifacts` may be a module that was added before the name was reserved."""
    assert not reaches(ARTIFACTS, frozenset({"mail"}))
    assert Settings().open_modules == frozenset()
    assert Settings(artifact_store=str(tmp_path)).open_modules == {ARTIFACTS}


@pytest.mark.parametrize("word", UNKNOWN)
def test_a_caller_with_an_unknown_word_is_a_guest(word: str) -> None:
    """Made in a program and read from a message: a typo gives no rights, and ends no agent's turn."""
    made = Caller.model_validate({"user_id": "ada", "permission": word})

    assert made == Caller(user_id="ada", permission="guest")
    assert Caller.model_validate_json(made.model_dump_json()) == made
    levels: list[Level] = ["guest", "user", "admin", "owner"]
    assert [Caller(permission=level).permission for level in levels] == levels
    with pytest.raises(ValidationError):
        Caller.model_validate({"permission": 3})
