"""What a manifest means to a registry that knows its module: one rule a test, without any registry."""

from typing import Any

import pytest

from toolfleet_registry.catalog.registration import Known, PlannedChange, RegistrationPlan, offers_of, take_in
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.tool_definition import BROKEN
from toolfleet_registry.manifests.manifest_cache import ToolOverride, Verdicts
from toolfleet_registry.specs import ToolRegistration, ToolSpec, definition_of, digest_of, spec_of


def tool(method: str = "push", **more: Any) -> ToolDefinition:
    return ToolDefinition(name=f"git.{method}", **more)


def registered(*tools: ToolDefinition, enabled: bool = True) -> dict[str, ToolRegistration]:
    return {one.name: ToolRegistration(spec=spec_of(one), enabled=enabled) for one in tools}


def digest(one: ToolDefinition) -> str:
    return digest_of(spec_of(one))


def taken(*offered: ToolDefinition, fault: str | None = None, **known: Any) -> RegistrationPlan:
    manifest = ModuleManifest(module_name="git", tools=list(offered))
    known.setdefault("registrations", {})
    return take_in(offers_of(manifest), Known(**known), lambda _: fault)


def kinds(intake: RegistrationPlan) -> list[tuple[str, str]]:
    return [(change.kind, change.tool_name) for change in intake.changes]


def test_a_new_tool_is_registered_under_its_version() -> None:
    """Or, without one, under the beginning of its digest."""
    intake = taken(tool("push", version="1.0"), tool("log"))

    assert [spec.version for spec in intake.register] == ["1.0", digest(tool("log"))[:19]]
    assert kinds(intake) == [("added", "git.push"), ("added", "git.log")]
    assert intake.verdicts == {}


@pytest.mark.parametrize(
    ("before", "after", "since", "kind"),
    [
        (tool(version="2"), tool(version="1"), None, "changed"),  # a module may go back
        (tool(), tool(description="Push it."), None, "changed"),  # each content is a version of its own
        (tool(version="1"), tool(version="1", description="Push it all."), None, "drifted"),
        (tool(version="1.0.0"), tool(version="2.0.1"), "2.0.0", "changed"),  # it ends the rollback
        (tool(version="1.0.0"), tool(version="1.0.0", description="Push it all."), "2.0.0", "drifted"),
        *((tool(version="1.0.0"), tool(version=held), "2.0.0", "held") for held in ("2.0.0", "1.5.0", "2.0.0-rc.1")),
    ],
)
def test_other_content_is_a_change_or_drift(
    before: ToolDefinition, after: ToolDefinition, since: str | None, kind: Any
) -> None:
    """Under another version it is registered; under the same one, or held back by a rollback, what is registered stays."""
    plan = taken(after, registrations={before.name: ToolRegistration(spec=spec_of(before), rolled_back_from=since)})
    names = [one.version or digest(one)[:19] for one in (before, after)]

    change = PlannedChange("git.push", kind, names[0], names[1], registered=digest(before))
    assert plan.changes == ([] if kind == "held" else [change])
    assert [spec.version for spec in plan.register] == (names[1:] if kind == "changed" else [])
    kept = {"git.push": ToolOverride(kept=before, digest=digest(after))}
    assert plan.verdicts == ({} if kind == "changed" else kept)


def test_drift_is_reported_once() -> None:
    """Until it is another one."""
    before, after, later = (tool(version="1", description=text) for text in "abc")
    seen: Verdicts = taken(after, registrations=registered(before)).verdicts

    assert taken(after, registrations=registered(before), verdicts=seen).changes == []
    assert kinds(taken(later, registrations=registered(before), verdicts=seen)) == [("drifted", "git.push")]


def test_a_tool_that_leaves_is_remembered() -> None:
    """It is removed once, and added once when it is back; a disabled one comes back disabled."""
    known = registered(tool("push")) | registered(tool("log"), enabled=False)
    left = taken(registrations=known, names=frozenset(known))
    assert left.forget == []
    assert kinds(left) == [("removed", "git.log"), ("removed", "git.push")]
    assert kinds(taken(registrations=known, names=frozenset())) == []  # it left long ago
    assert kinds(taken(registrations=known)) == []  # nobody knows when

    back = taken(tool("push"), tool("log"), registrations=known, names=frozenset())
    assert kinds(back) == [("added", "git.push"), ("added", "git.log")]
    assert back.register == []
    assert back.verdicts == {"git.log": ToolOverride(is_disabled=True)}


def test_only_so_many_that_left_are_remembered() -> None:
    """The oldest are forgotten, so that a module with ever new names fills no registry; disabled ones never."""
    known = registered(*(tool(f"t{number}") for number in range(1002)))
    known |= registered(tool("old"), enabled=False)
    dated = {
        name: one.model_copy(update={"created_at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"})
        for number, (name, one) in enumerate(known.items())
    }

    assert sorted(taken(registrations=dated).forget) == ["git.t0", "git.t1"]


def test_a_tool_that_is_no_definition_is_neither_registered_nor_forgotten() -> None:
    """It is closed, and when it is mended it is compared with what it was before."""
    known = registered(tool(version="1"))
    intake = taken(tool(required_permission=f"{BROKEN}it is wrong"), registrations=known, pins={})

    assert intake == RegistrationPlan([], [], [], {"git.push": ToolOverride(fault="it is wrong")})


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0)])
def test_what_python_takes_for_equal_is_not(before: Any, after: Any) -> None:
    """`1` and `true` are two things in JSON."""
    one, other = (tool(version="1", input_schema={"const": value}) for value in (before, after))
    assert kinds(taken(other, registrations=registered(one))) == [("drifted", "git.push")]


def test_what_had_drifted_is_withheld_under_another_version() -> None:
    """The content that a pin knew to be refused is no other content because it has a new name."""
    one, drifted = tool(version="1", description="a"), tool(version="1", description="b")
    known: dict[str, Any] = {"registrations": registered(one), "pins": {"git.push": digest(one)}}
    seen: Verdicts = {"git.push": ToolOverride(kept=one, digest=digest(drifted))}

    for version in ("2", None):
        plan = taken(tool(version=version, description="b"), **known, verdicts=seen)

        assert plan.register == []
        assert plan.verdicts["git.push"].is_withheld


def test_what_had_drifted_before_a_pin_goes_on_as_it_was() -> None:
    """What is approved is what is in effect; once the module offers yet another thing, that is withheld."""
    one, drifted, later = (tool(version="1", description=text) for text in "abc")
    known: dict[str, Any] = {"registrations": registered(one), "pins": {"git.push": digest(one)}}
    seen: Verdicts = {"git.push": ToolOverride(kept=one, digest=digest(drifted))}

    assert taken(drifted, **known, verdicts=seen).verdicts == seen
    assert taken(later, **known, verdicts=seen).verdicts["git.push"].is_withheld
    assert taken(drifted, **known).verdicts["git.push"].is_withheld  # nobody knows when it drifted
    for pins in ({}, {"git.push": digest(later)}):  # what is in effect is not what was approved
        assert taken(drifted, registrations=registered(one), pins=pins, verdicts=seen).verdicts["git.push"].is_withheld


def test_what_is_withheld_stays_disabled() -> None:
    """Approving it enables nothing."""
    known = registered(tool(version="1"), enabled=False)
    plan = taken(tool(version="2", description="Push it."), registrations=known, pins={"git.push": "another"})
    verdict = plan.verdicts["git.push"]

    assert (verdict.is_withheld, verdict.is_disabled) == (True, True)


def test_a_new_number_on_what_was_approved_is_no_change_of_it() -> None:
    """A digest leaves the version out: it is registered, and stays in effect."""
    intake = taken(tool(version="2"), registrations=registered(tool(version="1")), pins={"git.push": digest(tool())})

    assert [spec.version for spec in intake.register] == ["2"]
    assert intake.verdicts == {}


def test_what_somebody_else_registered_under_a_tools_version_closes_it() -> None:
    """What is registered is no definition, so there is nothing to keep."""
    spec = ToolSpec(tool_name="git.push", version="1", input_schema={}, output_schema={}, details={"cost": [1]})
    verdict = taken(tool(version="1"), registrations={"git.push": ToolRegistration(spec=spec)}).verdicts["git.push"]

    assert verdict.kept is None
    assert verdict.fault


RICH = tool(
    version="1.2.3",
    description="Push it.",
    parameters=[{"name": "force", "type": "str", "required": False, "enum": ["a", None], "sensitive": True}],
    required_permission="admin",
    output_schema={"type": "object"},
    tags=["b", "a"],
    effect="once",
    annotations={"readOnlyHint": False},
    timeout_seconds=2.5,
    cost="cheap",
    daily_limit=3,
    deprecated=True,
    successor="git.push2",
)


@pytest.mark.parametrize(
    "one",
    [
        tool(),
        RICH,
        RICH.model_copy(update={"input_schema": {"type": "object", "properties": {"n": {"default": 1.5}}}}),
        tool(input_schema={}),
        tool(input_schema={"properties": {}}, parameters=[]),
    ],
)
def test_a_definition_comes_back_as_it_was(one: ToolDefinition) -> None:
    """From what the registry keeps, also through JSON: what is kept in effect is what was offered once."""
    stored = ToolSpec.model_validate_json(spec_of(one).model_dump_json())

    assert stored == spec_of(one)
    assert definition_of(stored) == one
    assert digest_of(spec_of(definition_of(stored))) == digest_of(stored)


def test_odd_details_change_nothing_of_their_own() -> None:
    """Somebody else may have registered a tool with fields that are the specification's, or of no kind that we know."""
    spec = ToolSpec(tool_name="git.push", version="1", input_schema={}, output_schema={}, details={"name": "x", "y": 1})
    assert definition_of(spec) == tool(version="1", input_schema={})


def test_what_says_the_same_has_the_same_digest() -> None:
    """A field with its default, or none; the flat form with a type that we only understand since yesterday."""
    assert digest(tool(parameters=[], deprecated=False, requires_gate=False)) == digest(tool())
    assert spec_of(tool(parameters=[{"name": "a", "type": "str"}])).input_schema == {"a": "str"}


@pytest.mark.parametrize(
    "changed",
    [
        {"description": "Push it!"},
        {"required_permission": "guest"},
        {"tags": ["a", "b"]},
        {"timeout_seconds": 3},
        {"effect": "read"},
        {"parameters": []},
        {"input_schema": {}},
        {"successor": None},
    ],
)
def test_whatever_matters_is_in_the_digest(changed: dict[str, Any]) -> None:
    """Each field that is not the version."""
    assert digest(ToolDefinition.model_validate(RICH.model_dump() | changed)) != digest(RICH)


RENAMED = tool("send", former_names=["git.push"])


def test_a_new_name_enables_nothing() -> None:
    """A tool that an operator has disabled under its former name is disabled under the present one."""
    known = registered(tool("push"), enabled=False)

    assert taken(RENAMED, registrations=known).verdicts["git.send"].is_disabled
    assert taken(RENAMED, registrations=known | registered(RENAMED)).verdicts["git.send"].is_disabled
    assert taken(RENAMED, registrations=registered(tool("push"))).verdicts == {}


@pytest.mark.parametrize(
    ("offered", "pins", "is_withheld"),
    [
        (RENAMED, {"git.push": digest(tool("push"))}, False),
        (RENAMED, {"git.send": digest(RENAMED)}, False),
        (RENAMED, {"git.log": digest(tool("log"))}, True),
        (tool("send", former_names=["git.push"], description="Push more."), {"git.push": digest(tool("push"))}, True),
        (RENAMED, {"git.push": digest(tool("push")), "git.send": digest(tool("send"))}, True),
        (tool("send"), {"git.push": digest(tool("push"))}, True),
    ],
)
def test_a_pin_of_a_former_name_approves_the_same_tool(
    offered: ToolDefinition, pins: dict[str, str], *, is_withheld: bool
) -> None:
    """Nothing but its name may differ, and a pin of its present name counts more."""
    verdict = taken(offered, pins=pins).verdicts.get("git.send", ToolOverride())

    assert verdict.is_withheld is is_withheld
