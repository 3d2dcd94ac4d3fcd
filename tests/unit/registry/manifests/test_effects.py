"""What a manifest's words about repeats come to."""

import itertools
from typing import Any

import pytest

from toolfleet_registry.contracts import Effect, ModuleManifest, ToolAnnotations, ToolDefinition
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.manifests.overrides import ToolOverride, seen_tools

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
@pytest.mark.parametrize("name", ["t", "m.t"])
def test_settings_say_what_a_tool_does_not(
    own: ToolDefinition, said: Effect | None, effect: Effect | None, name: str
) -> None:
    """Of a tool's own word and that of the settings the careful one counts."""
    lines = ToolLines(effects={"other": "once", **({} if said is None else {name: said})})
    manifest = ModuleManifest(module_name="m", tools=[own], lines=lines)
    (seen,) = seen_tools(manifest, {})
    assert effect_of(seen.definition) == effect


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
