"""What every registry does, wherever it keeps what it knows."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import JsonValue, ValidationError

from toolfleet.stores import (
    InMemoryToolRegistry,
    SQLToolRegistry,
    ToolRegistration,
    ToolRegistry,
    ToolRegistrySnapshot,
    ToolSpec,
)
from toolfleet_registry.specs import digest_of

A, B = {"a": "string"}, {"b": "number"}


def owl(version: str | None = None, schema: dict[str, str] | None = None, name: str = "example") -> ToolSpec:
    return ToolSpec(tool_name=name, version=version, input_schema={**(schema or {})}, output_schema={})


def test_a_new_tool_is_enabled(registry: ToolRegistry) -> None:
    """And it says when it was registered, in UTC."""
    before = datetime.now(UTC) - timedelta(seconds=2)
    registration = registry.register(owl())

    assert registration.spec == owl()
    assert registration.enabled
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", registration.created_at or "")
    assert before < datetime.fromisoformat(registration.created_at or "") < datetime.now(UTC) + timedelta(seconds=2)
    assert registry.get("example") == registration


def test_an_identical_specification_changes_nothing(registry: ToolRegistry) -> None:
    """The registration that there is comes back, disabled or not; the order of names in a schema says nothing."""
    spec = ToolSpec(tool_name="x", input_schema={"a": 1, "b": [{}, []]}, output_schema={})
    same = ToolSpec(tool_name="x", input_schema={"b": [{}, []], "a": 1}, output_schema={})
    first = registry.register(spec)
    registry.set_enabled("x", enabled=False)
    revision = registry.revision()

    assert registry.register(same) == first.model_copy(update={"enabled": False})
    assert registry.revision() == revision


def test_another_version_takes_the_place(registry: ToolRegistry) -> None:
    """As a new registration, which is enabled; an older version, too."""
    registry.register(owl("1.0.0", A))
    registry.set_enabled("example", enabled=False)
    second = registry.register(owl("2.0.0", B))

    assert second.enabled
    assert registry.list_all() == [second]
    assert registry.register(owl("1.0.0", B)).spec.version == "1.0.0"
    assert [event.kind for event in registry.events()] == ["registered", "disabled", "changed", "enabled", "changed"]


def test_another_version_may_leave_a_tool_disabled(registry: ToolRegistry) -> None:
    """And an enabled one enabled."""
    registry.register(owl("1.0.0"), keep_enabled=True)
    assert registry.register(owl("2.0.0"), keep_enabled=True).enabled
    registry.set_enabled("example", enabled=False)

    assert not registry.register(owl("3.0.0"), keep_enabled=True).enabled
    assert registry.list_all() == []


@pytest.mark.parametrize("version", ["1.0.0", None, ""])
def test_one_version_has_one_specification(registry: ToolRegistry, version: str | None) -> None:
    """No version is a version, too: a tool without one needs one to change."""
    first = registry.register(owl(version, A))
    with pytest.raises(ValueError, match=r"'example' is registered (without a version|as version)"):
        registry.register(owl(version, B))

    assert registry.get("example") == first
    assert registry.register(owl("2.0.0", B)).spec.input_schema == B


@pytest.mark.parametrize(
    "other",
    [
        {"description": "else"},
        {"tags": ["x"]},
        {"output_schema": {"x": 1}},
        {"deprecated": True},
        {"successor": "y"},
        {"details": {"cost": "cheap"}},
        {"input_schema": {"x": 1.0}},  # in JSON another number than 1
        {"input_schema": {"x": True}},  # in Python equal to 1
    ],
)
def test_whatever_differs_is_another_specification(registry: ToolRegistry, other: dict[str, object]) -> None:
    """Each field counts."""
    registry.register(ToolSpec(tool_name="example", input_schema={"x": 1}, output_schema={}))
    with pytest.raises(ValueError, match="example"):
        registry.register(ToolSpec.model_validate({**owl().model_dump(), "input_schema": {"x": 1}, **other}))


def test_tools_are_listed_by_name(registry: ToolRegistry) -> None:
    """Enabled ones, or all; in the order of their characters, however they were registered."""
    names = ["b", "a.z", "B", "ä", "a", "a.b", "🦉", "\uffff", "1"]
    for name in names:
        registry.register(owl(name=name))
    registry.set_enabled("a.b", enabled=False)

    assert [each.spec.tool_name for each in registry.list_all(include_disabled=True)] == sorted(names)
    assert [each.spec.tool_name for each in registry.list_all()] == sorted({*names} - {"a.b"})
    assert registry.list_all() == registry.list_all(include_disabled=False)


def test_nothing_is_known_of_an_unknown_tool(registry: ToolRegistry) -> None:
    """It can be removed, however often, and not be switched."""
    assert registry.get("nobody") is None
    assert registry.get("no\ud800body") is None
    registry.remove("nobody")
    with pytest.raises(KeyError, match="nobody"):
        registry.set_enabled("nobody", enabled=True)
    assert registry.list_all() == []
    assert registry.events() == []


def test_a_tool_is_disabled_and_enabled(registry: ToolRegistry) -> None:
    """A second time changes nothing."""
    first = registry.register(owl())
    off = registry.set_enabled("example", enabled=False)
    revision = registry.revision()

    assert off == first.model_copy(update={"enabled": False})
    assert registry.set_enabled("example", enabled=False) == off
    assert registry.revision() == revision
    assert registry.get("example") == off
    assert registry.set_enabled("example", enabled=True) == first


def test_a_removed_tool_is_gone(registry: ToolRegistry) -> None:
    """Registered again it is a new one, and enabled."""
    registry.register(owl("1", A))
    registry.set_enabled("example", enabled=False)
    registry.remove("example")
    registry.remove("example")

    assert registry.get("example") is None
    assert registry.register(owl("1", B)).enabled


def test_a_disabled_tool_can_be_spared(registry: ToolRegistry) -> None:
    """Whoever forgets tools that have left asks for it in the same step, so that nobody's disabling gets lost between two."""
    registry.register_many([owl("1", A), owl("1", A, "cat")])
    registry.set_enabled("example", enabled=False)
    for name in ("example", "cat", "nobody"):
        registry.remove(name, unless_disabled=True)

    assert [each.spec.tool_name for each in registry.list_all(include_disabled=True)] == ["example"]


def test_an_operator_replaces_what_he_has_seen(registry: ToolRegistry) -> None:
    """Whatever the version is, and a disabled tool stays disabled; but nothing that somebody else has put there."""
    seen = digest_of(registry.register(owl("1", A)).spec)
    registry.set_enabled("example", enabled=False)
    for expected in ("sha256:else", "", None):
        with pytest.raises(ValueError, match="not registered as expected"):
            registry.replace(owl("1", B), expected=expected)

    replaced = registry.replace(owl("1", B), expected=seen)

    assert (replaced.spec, replaced.enabled) == (owl("1", B), False)
    assert registry.get("example") == replaced
    with pytest.raises(ValueError, match="not registered as expected"):
        registry.replace(owl("1", A), expected=seen)
    assert registry.replace(owl("1", B), expected=digest_of(owl("1", B))) == replaced
    with pytest.raises(ValueError, match="not registered as expected"):
        registry.replace(owl(name="new"), expected=seen)
    assert registry.replace(owl(name="new"), expected=None).enabled


def test_many_are_registered_in_their_order(registry: ToolRegistry) -> None:
    """Each by the rules; what one may not do, others may; also the same tool twice."""
    registry.register(owl("1", A, name="a"))
    registry.set_enabled("a", enabled=False)
    registry.register(owl("1", A, name="b"))
    specs = [
        owl("1", A, name="a"),  # as it is
        owl("1", B, name="b"),  # drift
        owl("1", A, name="c"),  # new
        owl("2", B, name="a"),  # another version
        owl("1", B, name="c"),  # drift from what has just come
        owl("1", A, name="a"),  # and back
        ToolSpec(tool_name="d", input_schema={"x": float("nan")}, output_schema={}),
    ]
    results = registry.register_many(specs, keep_enabled=True)

    said = [result.enabled if isinstance(result, ToolRegistration) else type(result) for result in results]
    assert said == [False, ValueError, True, False, ValueError, False, ValueError]
    assert [each.spec for each in registry.list_all(include_disabled=True)] == [
        specs[5],
        owl("1", A, name="b"),
        specs[2],
    ]
    assert registry.register_many([]) == []
    assert registry.register_many([specs[2]] * 2) == [registry.get("c")] * 2


def test_many_that_are_known_change_nothing(registry: ToolRegistry) -> None:
    """A module that sends the same manifest again makes no events."""
    specs = [owl("1", A, name=f"tool {number}") for number in range(2500)]
    registry.register_many(specs)
    registry.set_enabled("tool 7", enabled=False)
    revision, events = registry.revision(), registry.events(limit=9999)

    known = {each.spec.tool_name: each for each in registry.list_all(include_disabled=True)}
    assert registry.register_many(specs) == [known[spec.tool_name] for spec in specs]
    assert (registry.revision(), registry.events(limit=9999)) == (revision, events)


def test_what_is_no_json_is_refused(registry: ToolRegistry) -> None:
    """A store would give back something else."""
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'x' has a number"):
            registry.register(ToolSpec(tool_name="x", input_schema={"a": [number]}, output_schema={}))


def test_any_text_is_a_name_and_a_version(registry: ToolRegistry) -> None:
    """Kept as it is, whatever it means to a server."""
    nasty = [
        "'; DROP TABLE x; --",
        "a\nb\n1\n",
        "a\x00b",
        "%s :x {} $1",
        '["a","b"]',
        "🦉" * 300,
        " ",
        "null",
        "x" * 9999,
    ]
    for text in nasty:
        details: dict[str, JsonValue] = {text: [text, 2**70, -0.5, 1e300, None, {}, [], [{}]]}
        spec = ToolSpec(
            tool_name=text,
            version=text,
            description=text,
            input_schema={},
            output_schema={},
            tags=[text],
            details=details,
        )
        registration = registry.register(spec)
        registry.pin(text, {text: text})

        assert registry.get(text) == registration
        assert registration.spec.model_dump_json() == spec.model_dump_json()
        assert registry.register(spec) == registration
        assert registry.events(limit=99)[-1].version == text
        assert registry.set_enabled(text, enabled=False).spec.details == details

    assert registry.pins() == {text: {text: text} for text in nasty}
    assert len(registry.list_all(include_disabled=True)) == len(nasty)


def test_nobody_changes_a_registration_from_outside(registry: ToolRegistry) -> None:
    """Models are frozen, what is in their dicts is not: neither what was given nor what was returned is the registry's own."""
    spec = owl("1", A)
    given = registry.register(spec)
    spec.input_schema["a"] = "changed"
    given.spec.input_schema["a"] = "changed"
    for each in registry.list_all():
        each.spec.input_schema["a"] = "changed"

    assert registry.register(owl("1", A)).spec.input_schema == A
    with pytest.raises(ValidationError, match="frozen"):
        given.enabled = False  # type: ignore[misc] # that is what is tested
    assert registry.snapshot().tools[0].spec.input_schema == A
    registry.search("example")[0].spec.input_schema["a"] = "changed"
    assert registry.search("example")[0].spec.input_schema == A


def test_pins_are_kept_by_module(registry: ToolRegistry) -> None:
    """Pinned anew, a module has no other; a module may be pinned to nothing."""
    registry.pin("git", {"git.push": "d1", "git.pull": "d2"})
    registry.pin("gi", {"gi.t": "d3"})
    registry.pin("none", {})
    assert registry.pins() == {"gi": {"gi.t": "d3"}, "git": {"git.pull": "d2", "git.push": "d1"}, "none": {}}

    registry.pin("git", {"git.push": "d4"})
    registry.approve("git", "git.push", "d5")
    registry.approve("git", "git.tag", "d6")
    registry.approve("none", "x", "d7")
    registry.unpin("gi")
    registry.unpin("nobody")

    assert registry.pins() == {"git": {"git.push": "d5", "git.tag": "d6"}, "none": {"x": "d7"}}
    with pytest.raises(KeyError, match="'gi' is not pinned"):
        registry.approve("gi", "gi.t", "d3")
    registry.unpin("git")
    registry.unpin("none")
    assert registry.pins() == {}


def test_every_change_has_a_revision_of_its_own(registry: ToolRegistry) -> None:
    """Of pins too; what changes nothing, or fails, has none."""
    seen = [registry.revision()]
    changes: list[Callable[[], object]] = [
        lambda: registry.register(owl("1", A)),
        lambda: registry.register(owl("2", A)),
        lambda: registry.set_enabled("example", enabled=False),
        lambda: registry.replace(owl("2", B), expected=digest_of(owl("2", A))),
        lambda: registry.pin("m", {"a": "d"}),
        lambda: registry.approve("m", "a", "e"),
        lambda: registry.pin("m", {}),
        lambda: registry.unpin("m"),
        lambda: registry.remove("example"),
        lambda: registry.restore(ToolRegistrySnapshot(pins={"x": {}})),
    ]
    for change in changes:
        change()
        seen.append(registry.revision())
    assert len(set(seen)) == len(seen)

    registry.register(owl("1", A))
    registry.pin("m", {"a": "d"})
    revision = registry.revision()
    idle: list[Callable[[], object]] = [
        lambda: registry.register(owl("1", A)),
        lambda: registry.set_enabled("example", enabled=True),
        lambda: registry.remove("nobody"),
        lambda: registry.pin("m", {"a": "d"}),
        lambda: registry.approve("m", "a", "d"),
        lambda: registry.unpin("nobody"),
        lambda: registry.restore(registry.snapshot()),
    ]
    for nothing in idle:
        nothing()
    with pytest.raises(ValueError, match="example"):
        registry.register(owl("1", B))
    with pytest.raises(KeyError):
        registry.approve("nobody", "a", "d")
    assert registry.revision() == revision


def test_a_registry_is_told_from_any_other(registry: ToolRegistry, registries: Callable[[], ToolRegistry]) -> None:
    """By a name that it keeps, whoever opens it, and whatever becomes of what is in it."""
    identity = registry.identity()
    registry.register(owl())
    registry.restore(ToolRegistrySnapshot())

    assert len(identity) == 32
    assert registry.identity() == registries().identity() == identity
    other = SQLToolRegistry("sqlite://")
    assert len({identity, other.identity(), InMemoryToolRegistry().identity()}) == 3
    other.close()
