"""Tool names: ours, and those that providers accept."""

import itertools
import random
import re

import pytest

from toolfleet_registry.contracts.names import MAX_PROVIDER_NAME, ToolName, is_module_name, name_fault, provider_name
from toolfleet_registry.errors import InvalidToolName

ACCEPTED = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@pytest.mark.parametrize(
    ("name", "module", "method"),
    [
        ("git.push", "git", "push"),
        ("git.issue.create", "git", "issue.create"),  # the first dot only
        ("a.b", "a", "b"),
        ("9gag.top", "9gag", "top"),
        ("claude_code.run-it", "claude_code", "run-it"),
        ("git..x", "git", ".x"),
        ("git.größe", "git", "größe"),
        (f"{'m' * 64}.{'x' * 192}", "m" * 64, "x" * 192),
    ],
)
def test_a_name_is_split_on_its_first_dot(name: str, module: str, method: str) -> None:
    """And it can be written again as it was."""
    parsed = ToolName.parse(name)
    assert (parsed.module, parsed.method) == (module, method)
    assert str(parsed) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "git",
        "git.",
        ".push",
        "git push.x",
        "git.a b",
        "git.a\n",
        "git:x.push",  # a module's name becomes part of Redis keys
        "_git.push",
        "gït.push",
        "git/../x.y",
        f"{'m' * 65}.x",
        f"git.{'x' * 193}",
        "git.\x00",
        "git.\x1b[2J",
        "git.\x9b2J",  # commands a terminal, too
        "git.\u202egnp.exe",  # reads backwards
        "git.push\u200b",  # looks like another
        "git.\ud800",  # cannot be written at all
    ],
)
def test_other_names_are_invalid(name: str) -> None:
    """With the text that agents know."""
    with pytest.raises(InvalidToolName) as caught:
        ToolName.parse(name)
    assert str(caught.value) == f"Invalid tool name format: {name}. Expected 'module.tool_name'."
    assert caught.value.name == name


@pytest.mark.parametrize(
    "name",
    [
        "letters.send\ufe0f",  # invisible
        "letters.s\u0435nd",  # Cyrillic
        "letters.\uff53end",  # full width
        "letters.größe",
        "letters.a/b",
    ],
)
def test_a_name_that_may_look_like_another_is_told_apart(name: str) -> None:
    """By what it consists of: its fault can be read where its name cannot."""
    assert ToolName.parse(name).module == "letters"
    assert name_fault(name) == f"its name {name!a} has more than ASCII letters, digits, '_', '-' and dots"
    assert name_fault("letters.Send-it_2.now") is None


def test_a_modules_name_is_plain() -> None:
    """Letters, digits, underscores and dashes."""
    assert all(map(is_module_name, ("git", "claude_code", "git-lfs", "G2")))
    assert not any(map(is_module_name, ("", "a.b", "a:b", "-a", "a b", "é", "a\n", "a" * 65)))


@pytest.mark.parametrize(
    ("name", "provided"),
    [
        ("git.push", "git__push"),
        ("git.issue.create", "git__issue__create"),
        ("claude_code.run_it", "claude_code__run_it"),
        ("git-lfs.fetch", "git-lfs__fetch"),
    ],
)
def test_an_ordinary_name_stays_readable(name: str, provided: str) -> None:
    """Only the dot changes."""
    assert provider_name(name) == provided


@pytest.mark.parametrize(
    "name",
    ["a.b__c", "a_.b", "a._b", "9.x", "a.é", "a.b/c", "a.b-x0123456789", f"a.{'x' * 190}", "-", "é", ""],
)
def test_any_name_is_accepted_by_providers(name: str) -> None:
    """What could be taken for another, or by nobody, ends in a digest; it is the same in every process."""
    provided = provider_name(name)
    assert ACCEPTED.fullmatch(provided)
    assert re.search(r"-x[0-9a-f]{10}$", provided)
    assert provided == provider_name(name)


def test_a_digest_is_stable() -> None:
    """A changed one would break running conversations."""
    assert provider_name("a._b") == "a___b-xdd1c251ab4"
    assert len(provider_name(f"a.{'x' * 190}")) == MAX_PROVIDER_NAME


def test_no_two_short_names_share_one() -> None:
    """Every name of up to eight letters, dots, underscores and dashes."""
    names = ["".join(letters) for length in range(1, 9) for letters in itertools.product("a._-", repeat=length)]
    assert len({provider_name(name) for name in names}) == len(names)


def test_no_two_random_names_share_one() -> None:
    """Made of the pieces that the mapping itself is made of, and of its own output."""
    dice = random.Random(20250101)
    pieces = ["a", "b", "_", "__", ".", "..", "-", "-x", "0123456789", "abcdef0123", "é", "/", "x" * 30]
    names = {"".join(dice.choices(pieces, k=dice.randint(1, 8))) for _ in range(50_000)}
    names |= {provider_name(name) for name in names}
    provided = {provider_name(name): name for name in names}
    assert len(provided) == len(names)
    assert all(map(ACCEPTED.fullmatch, provided))
    assert all(provided[provider_name(name)] == name for name in names)
