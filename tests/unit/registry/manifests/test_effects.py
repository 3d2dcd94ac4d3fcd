"""What a manifest's words about repeats come to, and which version is the later one."""

import itertools
import json
import random
from typing import Any

import pytest

from toolfleet_registry.admission_rules import admit, closed_tools
from toolfleet_registry.agents.profile_rules import approval_rules
from toolfleet_registry.contracts import Effect, ModuleManifest, ToolAnnotations, ToolDefinition
from toolfleet_registry.contracts.tool_definition import Approvers, ToolLines, approvers_of
from toolfleet_registry.manifests.manifest_cache import ToolOverride, seen_tools
from toolfleet_registry.permissions import denial
from toolfleet_registry.specs import (
    compare_versions,
    digest_of,
    effect_of,
    ends_rollback,
    is_later,
    spec_of,
    version_key,
)

WORDS = (None, False, True)


def tool(*, effect: Effect | None = None, idempotent: bool | None = None, **hints: bool | None) -> ToolDefinition:
    annotations = ToolAnnotations.model_validate(hints) if hints else None
    return ToolDefinition(name="m.t", effect=effect, idempotent=idempotent, annotations=annotations)


@pytest.mark.parametrize(
    ("words", "effect"),
    [
        ({}, None),
        ({"readOnlyHint": True}, "read"),
        ({"idempotent": True}, "idempotent"),
        ({"idempotentHint": True}, "idempotent"),
        ({"idempotent": False}, "once"),
        ({"idempotentHint": False}, "once"),
        ({"destructiveHint": True}, "once"),
        ({"readOnlyHint": False}, None),  # it does something, and a repeat may do nothing more
        ({"destructiveHint": False}, None),  # it only adds, and a repeat may add more
        # Together they agree.
        ({"readOnlyHint": True, "idempotent": True, "idempotentHint": True, "destructiveHint": False}, "read"),
        ({"readOnlyHint": True, "idempotentHint": False}, "read"),  # without meaning for a reader
        ({"readOnlyHint": False, "idempotentHint": True, "destructiveHint": True}, "idempotent"),  # a deletion
        ({"readOnlyHint": False, "idempotentHint": False, "destructiveHint": False}, "once"),
        # They contradict each other: the careful word counts.
        ({"readOnlyHint": True, "destructiveHint": True}, "once"),
        ({"readOnlyHint": True, "idempotent": False}, "once"),
        ({"idempotent": True, "idempotentHint": False}, "once"),
        ({"idempotent": False, "idempotentHint": True}, "once"),
    ],
)
def test_hints_become_an_effect(words: dict[str, Any], effect: Effect | None) -> None:
    """Our own word and those of the Model Context Protocol, alone and together."""
    assert effect_of(tool(**words)) == effect


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
@pytest.mark.parametrize("word", [True, False])
def test_a_stated_effect_wins(effect: Effect, word: bool) -> None:
    """Whatever the hints say: it is the one word that was made for this."""
    assert effect_of(tool(effect=effect, idempotent=word, readOnlyHint=word, destructiveHint=word)) == effect


def test_a_word_of_caution_is_never_overheard() -> None:
    """Of all that can be said, a tool counts as harmless only if somebody says so and nobody credible denies it."""
    for idempotent, read_only, idempotent_hint, destructive in itertools.product(WORDS, repeat=4):
        words: dict[str, Any] = {
            "readOnlyHint": read_only,
            "idempotentHint": idempotent_hint,
            "destructiveHint": destructive,
        }
        effect = effect_of(tool(idempotent=idempotent, **words))
        if effect in {"read", "idempotent"}:
            assert idempotent is not False
            assert idempotent or read_only or idempotent_hint
            assert read_only or idempotent_hint is not False
        if effect == "read":
            assert read_only
            assert not destructive


@pytest.mark.parametrize(
    ("own", "said", "effect"),
    [
        (tool(), "read", "read"),
        (tool(), "once", "once"),
        (tool(), None, None),
        (tool(effect="once"), "read", "once"),
        (tool(effect="read"), "once", "once"),
        (tool(effect="read"), "idempotent", "idempotent"),
        (tool(idempotent=True), "read", "idempotent"),
        (tool(destructiveHint=True), "read", "once"),
        (tool(readOnlyHint=True), "read", "read"),
    ],
)
@pytest.mark.parametrize("name", ["t", "m.t", "before", "m.before"])
def test_settings_say_what_a_tool_does_not(
    own: ToolDefinition, said: Effect | None, effect: Effect | None, name: str
) -> None:
    """Of a tool's own word and that of the settings the careful one counts, also where they say a former name of the tool."""
    lines = ToolLines(effects={"other": "once", **({} if said is None else {name: said})})
    manifest = ModuleManifest(module_name="m", tools=[renamed(own)], lines=lines)
    (seen,) = seen_tools(manifest, {})
    assert effect_of(seen.definition) == effect


def renamed(tool: ToolDefinition) -> ToolDefinition:
    return tool.model_copy(update={"former_names": ["m.before"]})


def test_of_lines_for_several_names_of_a_tool_the_careful_one_counts() -> None:
    """In whichever order they stand."""
    for names in (("t", "before"), ("before", "t"), ("m.t", "m.before"), ("m.before", "t")):
        lines = ToolLines(effects=dict(zip(names, ("once", "read"), strict=True)))
        (seen,) = seen_tools(ModuleManifest(module_name="m", tools=[renamed(tool())], lines=lines), {})
        assert effect_of(seen.definition) == "once"


@pytest.mark.parametrize(
    ("own", "said", "raised", "set_by_host"),
    [
        ("guest", "admin", "admin", "admin"),
        ("admin", "user", "admin", "user"),
        ("owner", "guest", "owner", "guest"),
        ("user", None, "user", "user"),
        ("usr", "guest", "usr", "usr"),  # a tool that is closed stays closed
        ("broken: no name", "guest", "broken: no name", "broken: no name"),
    ],
)
def test_settings_raise_what_a_tool_asks_for(own: str, said: Any, raised: str, set_by_host: str) -> None:
    """Only a host's line lowers it."""
    definition, lines = ToolDefinition(name="m.t", required_permission=own), ToolLines(permission=said)
    (seen,) = seen_tools(ModuleManifest(module_name="m", tools=[definition], lines=lines), {})
    assert (seen.definition.required_permission, seen.access.required_permission) == (raised, raised)
    assert lines.on(definition, None, lowers=True).required_permission == set_by_host


def test_a_registered_definition_that_stays_has_the_lines_too() -> None:
    """Settings hold whichever definition is in effect, and a process's own lines beside those that are kept."""
    kept, offered = tool(effect="read"), tool().model_copy(update={"version": "1"})
    manifest = ModuleManifest(module_name="m", tools=[offered], lines=ToolLines(permission="user"))
    own = ToolLines(effects={"t": "idempotent"}, permission="admin")
    (seen,) = seen_tools(manifest, {"m.t": ToolOverride(kept=kept)}, own)
    assert (seen.definition.effect, seen.access.required_permission) == ("idempotent", "admin")


@pytest.mark.parametrize("name", ["t", "m.t", "before", "m.before"])
@pytest.mark.parametrize(
    ("own", "line", "closed", "turns"),
    [
        (None, {"key": "day", "limit": 2, "per_user": True}, False, ("day", 2, True)),
        ("week", {"key": "day"}, False, ("week", 1, False)),  # its own word
        (None, {"key": "year"}, True, ("year", 1, False)),
        (None, {"key": "day."}, True, ("day.", 1, False)),
    ],
)
def test_settings_say_which_calls_wait_for_each_other(
    name: str, own: str | None, line: dict[str, Any], closed: bool, turns: tuple[str, int, bool]
) -> None:
    """For a tool that does not say; a key that names no argument closes it."""
    named: dict[str, Any] = {"day": {}, "week": {}}
    offered = renamed(ToolDefinition(name="m.t", input_schema={"properties": named}, concurrency_key=own))
    lines = ToolLines.model_validate({"concurrency": {"other": {"key": "x"}, name: line}})
    (seen,) = seen_tools(ModuleManifest(module_name="m", tools=[offered], lines=lines), {})
    tool = seen.definition

    assert (tool.concurrency_key, tool.concurrency_limit, tool.concurrency_per_user) == turns
    assert (str(denial(seen.access, "owner", "*")).startswith("Tool 'm.t' is closed: its concurrency_key")) == closed
    assert lines.unmet([offered]) == ["other"]


ADMINS, CAROL = Approvers(permission="admin"), Approvers(users=frozenset({"carol"}))


@pytest.mark.parametrize(
    ("offered", "asked"),
    [
        ({}, ()),
        ({"approval": False}, ()),
        ({"approval": None}, ()),
        ({"approval": True}, (ADMINS,)),
        ({"approval": {"users": ["carol"]}}, (CAROL,)),
        ({"approval": [{"permission": "admin"}, {"users": ["carol"]}]}, (ADMINS, CAROL)),
    ],
)
@pytest.mark.parametrize(
    ("lines", "more"),
    [
        (ToolLines(), ()),
        (ToolLines(approval=("other",)), ()),
        (ToolLines(approval=("t",)), (ADMINS,)),
        (ToolLines(approval=("m.t",), approvers=CAROL), (CAROL,)),
        (ToolLines(approval=("before",)), (ADMINS,)),
        (ToolLines(approval=("m.before",), approvers=CAROL), (CAROL,)),
        (ToolLines(approval=True), (ADMINS,)),
    ],
)
def test_settings_add_an_approval_and_remove_none(
    offered: dict[str, Any], asked: tuple[Approvers, ...], lines: ToolLines, more: tuple[Approvers, ...]
) -> None:
    """What a tool asks for itself is asked for whatever settings say, once where both say the same."""
    definition = ToolDefinition.model_validate({"name": "m.t", "former_names": ["m.before"], **offered})
    (seen,) = seen_tools(ModuleManifest(module_name="m", tools=[definition], lines=lines), {})
    assert approvers_of(seen.definition.approval) == tuple(dict.fromkeys((*asked, *more)))
    rules = approval_rules(seen.definition, ())
    assert [(rule.permission, rule.users, rule.quorum, rule.self_approval) for rule in rules] == [
        (who.permission, who.users, 1, False) for who in dict.fromkeys((*asked, *more))
    ]


@pytest.mark.parametrize("approval", [{"user": ["carol"]}, {"permission": "admins"}, "people", 7, [True]])
def test_an_approval_that_nobody_understands_closes_the_tool(approval: Any) -> None:
    """A typo must not let calls through that somebody wants approved."""
    document = {"module_name": "m", "tools": [{"name": "m.t", "approval": approval}]}
    assert closed_tools(admit("m", document)) == ("m.t",)


@pytest.mark.parametrize(
    ("name", "effect"), [("pay", "idempotent"), ("m.pay", "idempotent"), ("pay_once", "once"), ("m.pay_once", "once")]
)
def test_lines_may_name_a_tool_as_it_was_named(name: str, effect: Effect) -> None:
    """A tool that has another name now has no way around what settings say of it: of two lines the careful one counts."""
    definition = ToolDefinition(name="m.pay", former_names=["m.pay_once"])
    lines = ToolLines(effects={name: effect, "m.pay": "idempotent"}, approval=(name,))
    (seen,) = seen_tools(ModuleManifest(module_name="m", tools=[definition], lines=lines), {})
    assert (seen.definition.effect, approvers_of(seen.definition.approval)) == (effect, (ADMINS,))


def test_an_approval_that_is_new_under_an_old_version_is_asked_for() -> None:
    """The registered definition stays in effect, and yet nobody runs the tool without what its author asks for now."""
    kept = tool(effect="read").model_copy(update={"version": "1"})
    offered = kept.model_copy(update={"approval": True})
    manifest = ModuleManifest(module_name="m", tools=[offered])
    (seen,) = seen_tools(manifest, {"m.t": ToolOverride(kept=kept)})
    assert approvers_of(seen.definition.approval) == (ADMINS,)


def test_who_approves_has_one_digest_in_every_process() -> None:
    """However names were ordered as they came; and a tool without an approval has the digest that it had."""
    users = [f"user-{n}" for n in range(20)]
    forms = [{"name": "m.t", "approval": {"users": names}} for names in (users, users[::-1])]
    one, other = (digest_of(spec_of(ToolDefinition.model_validate(form))) for form in forms)
    assert one == other
    assert json.loads(ToolDefinition.model_validate(forms[1]).model_dump_json())["approval"]["users"] == sorted(users)
    assert "approval" not in spec_of(tool()).details


def test_versions_are_sorted() -> None:
    """None, then semantic ones as Semantic Versioning sorts them, then all others as text."""
    ordered = [
        None,
        "0.9.0",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.0+build.2",  # builds are equal to Semantic Versioning: by their text
        "1.0.0+build.3",
        "1.2.0",
        "1.10.0",
        "2.0.0",
        "",
        "1.0",
        "1.0.0\n",
        "sha256:0123456789ab",
        "v1.0.0",
        "\u0661.0.0",  # a digit, but not of ours
    ]
    for seed in range(9):
        shuffled = ordered.copy()
        random.Random(seed).shuffle(shuffled)
        assert sorted(shuffled, key=version_key) == ordered


@pytest.mark.parametrize(
    ("version", "than", "later"),
    [
        ("1.10.0", "1.9.0", True),
        ("1.9.0", "1.10.0", False),
        ("1.0.0", "1.0.0", False),
        ("1.0.0", "1.0.0-rc.1", True),
        ("1.0.0", None, True),
        (None, None, False),
        ("latest", "9.9.9", True),  # what is no version as we know them comes last
    ],
)
def test_one_version_is_later_than_another(version: str | None, than: str | None, later: bool) -> None:
    """Or not."""
    assert is_later(version, than) is later


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "01.0.0", "1.0.0-01", "", None, "9" * 5000 + ".0.0", "1.0.0 "])
def test_what_is_no_semantic_version_is_none(version: str | None) -> None:
    """However long it is."""
    assert version_key(version) == ((0,) if version is None else (2, version))


@pytest.mark.parametrize(
    ("one", "other", "order"), [("1.2.0", "1.10.0", -1), ("1.0.0", "1.0.0", 0), ("2.0.0", None, 1), (None, None, 0)]
)
def test_two_versions_are_compared(one: str | None, other: str | None, order: int) -> None:
    """As functions that sort take it."""
    assert compare_versions(one, other) == order
    assert compare_versions(other, one) == -order


@pytest.mark.parametrize(
    ("version", "rolled_back_from", "ends"),
    [
        ("2.0.1", "2.0.0", True),
        ("2.0.0", "2.0.0", False),
        ("1.9.0", "2.0.0", False),
        ("sha256:b", "sha256:a", True),  # which one is later nobody knows
        ("sha256:a", "sha256:a", False),
        ("1.0.0", "sha256:a", True),
        (None, "1.0.0", True),
    ],
)
def test_a_later_version_ends_a_rollback(version: str | None, rolled_back_from: str, ends: bool) -> None:
    """Or any other one, where the two cannot be compared."""
    assert ends_rollback(version, rolled_back_from) is ends
