"""Which calls wait for each other, and which tools cannot say so."""

import re
from hashlib import sha256
from typing import Any

import pytest

from toolfleet_modules.sdk.tool import Facts
from toolfleet_registry.contracts import ToolDefinition, ToolParameter, Turn
from toolfleet_registry.contracts.tool_definition import ConcurrencyLine, argument_path, concurrency_fault
from toolfleet_registry.policy.turns import turn_of, words_of
from toolfleet_registry.specs import digest_of, spec_of

DIGEST_BEFORE = "sha256:21619391a197b8b2e17cbc4f1a8edd213ceccddec8ad783ab3165ec3553ee2db"
SCHEMA: dict[str, Any] = {"properties": {"repository": {}, "pull": {"type": "object"}}}


def line(value: Any, *, user: str | None = "ann", name: str = "git.push", **said: Any) -> str | None:
    """Return the line of a call with this value."""
    tool = ToolDefinition(name=name, concurrency_key="repository", **said)
    turn = turn_of(tool, {"repository": value}, user)
    return None if turn is None else turn.line


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("owls", "owls"),
        (1, 1.0),
        (0, -0.0),
        (2**60, float(2**60)),
        ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1.0}),
    ],
)
def test_equal_values_share_a_line(one: Any, other: Any) -> None:
    """As JSON Schema compares them, over all users and tools of a module, and whatever their limits are."""
    assert line(one) == line(other, user=None, name="git.merge", concurrency_limit=3) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("owls", "Owls"),
        ("é", "e\u0301"),
        (1, "1"),
        (1, True),
        (0, False),
        ([1], 1),
        (2**53 + 1, float(2**53)),
        ("", []),
    ],
)
def test_other_values_do_not(one: Any, other: Any) -> None:
    """Texts are compared letter for letter, and a boolean is no number."""
    assert line(one) != line(other)


def test_a_limit_is_a_number_that_scripts_write_as_they_read_it() -> None:
    tool = ToolDefinition(name="git.push", concurrency_key="repository", concurrency_limit=2**63)

    assert turn_of(tool, {"repository": "owls"}, None) == Turn(line=line("owls") or "", limit=1_000_000)


def test_a_line_belongs_to_a_module_and_if_so_declared_to_a_user() -> None:
    """Calls without a user are one user's."""
    others = {line("owls"), line("owls", name="svn.push")}
    users = {line("owls", user=user, concurrency_per_user=True) for user in ("ann", "bob", None)}

    assert len(others | users) == 5


def test_a_line_names_its_module_and_no_value() -> None:
    """A sensitive argument is in Redis as its digest only; a huge one takes no more room."""
    lines = [str(line(value)) for value in ("hunter2", "hunter2" * 100_000)]

    assert all(re.fullmatch("git:[0-9a-f]{64}", each) for each in lines)


def test_a_line_is_the_same_in_every_release() -> None:
    """Workers and agents of several releases compute it."""
    tool = ToolDefinition(
        name="git.push", concurrency_key="pull.number", concurrency_limit=2, concurrency_per_user=True
    )
    digest = sha256(b'["git",["ann"],7]').hexdigest()

    assert turn_of(tool, {"pull": {"number": 7.0}}, "ann") == Turn(line=f"git:{digest}", limit=2)


@pytest.mark.parametrize(
    "arguments", [{}, {"pull": None}, {"pull": {}}, {"pull": {"number": None}}, {"pull": [1]}, {"pull": 1}]
)
def test_a_call_without_a_value_waits_for_none(arguments: dict[str, Any]) -> None:
    """Nothing and null name nothing that calls could share."""
    assert turn_of(ToolDefinition(name="git.push", concurrency_key="pull.number"), arguments, "ann") is None


def test_a_tool_without_a_key_has_no_turns() -> None:
    """As nearly all tools."""
    assert turn_of(ToolDefinition(name="git.push"), {"repository": "owls"}, "ann") is None


def test_every_door_takes_the_same_fields() -> None:
    """A decorator, a definition, and a line of settings."""
    fields = {f"concurrency_{name}" for name in ConcurrencyLine.model_fields}

    assert fields == {name for name in ToolDefinition.model_fields if name.startswith("concurrency_")}
    assert fields <= Facts.__annotations__.keys()


def test_a_key_is_part_of_what_a_tool_is() -> None:
    """So that a pinned module's operator is asked; the digest of a tool without one is what it was."""
    plain = {"name": "git.push", "input_schema": SCHEMA}
    unset = {"concurrency_key": None, "concurrency_limit": 1, "concurrency_per_user": False}
    digests = [
        digest_of(spec_of(ToolDefinition.model_validate(plain | more)))
        for more in ({}, unset, {"concurrency_key": "repository"})
    ]

    assert digests[0] == digests[1] == DIGEST_BEFORE
    assert digests[2] != digests[0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, None),
        ({"concurrency_key": "repository"}, "1 at a time with the same 'repository', of all users"),
        (
            {"concurrency_key": "a.b", "concurrency_limit": 3, "concurrency_per_user": True},
            "3 at a time with the same 'a.b', of each user",
        ),
    ],
)
def test_people_read_which_calls_wait(said: dict[str, Any], words: str | None) -> None:
    """Where a tool is shown."""
    assert words_of(ToolDefinition.model_validate({"name": "git.push", **said})) == words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("repository", ("repository",)),
        ("pull.number", ("pull", "number")),
        ('"repo-id"."a.b"._c', ("repo-id", "a.b", "_c")),
        *((text, None) for text in ("", ".", "a.", "a..b", "a b", "a[0]", "/a", "1a", '""', '"a', "é", "a" * 257)),
    ],
)
def test_a_path_is_names_with_dots_between_them(text: str, names: tuple[str, ...] | None) -> None:
    """What else JMESPath can say is none."""
    assert argument_path(text) == names


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({}, None),
        ({"concurrency_key": "repository"}, None),
        ({"concurrency_key": "pull.number", "concurrency_limit": 2, "concurrency_per_user": True}, None),
        ({"concurrency_limit": 2}, "need a concurrency_key"),
        ({"concurrency_per_user": True}, "need a concurrency_key"),
        ({"concurrency_key": "repository[0]"}, "no path of an argument"),
        ({"concurrency_key": "repo"}, "names 'repo', which is no argument"),
        ({"concurrency_key": "repo", "input_schema": SCHEMA | {"additionalProperties": True}}, None),
        ({"concurrency_key": "repo", "input_schema": {"$ref": "#/$defs/a"}}, None),
        ({"concurrency_key": "repo", "input_schema": {"properties": 7}}, "no argument"),
        ({"concurrency_key": "repo", "input_schema": None}, "no argument"),
        (
            {
                "concurrency_key": "repo",
                "input_schema": None,
                "parameters": [ToolParameter(name="repo", type="string")],
            },
            None,
        ),
    ],
)
def test_a_key_that_names_no_argument_is_a_fault(said: dict[str, Any], fault: str | None) -> None:
    """A typo must not let calls overtake each other."""
    found = concurrency_fault(ToolDefinition.model_validate({"name": "git.push", "input_schema": SCHEMA, **said}))

    assert found is None if fault is None else fault in str(found)
