"""The rules for manifests: each module offers its own tools, once."""

import json
from typing import Any

import pytest

from support.modules.raw_modules import manifest_of
from toolfleet_registry.admission_rules import MAX_TOOLS, admit, closed_tools, read_document, unknown_fields
from toolfleet_registry.errors import ManifestRefused
from toolfleet_registry.permissions import broken_because


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "parameters": [], **more}


def test_a_manifest_of_the_module_that_was_asked_comes_in() -> None:
    """Methods may have dots of their own: only the first one separates. A module may have nothing to offer for now."""
    manifest = admit("git", manifest_of("git", "push", "issue.create"))
    assert [tool.name for tool in manifest.tools] == ["git.push", "git.issue.create"]
    assert admit("git", manifest_of("git")).tools == []


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "wrong at module_name: Field required (and 1 more)"),
        ({"module_name": "git"}, "wrong at tools: Field required"),
        ({"module_name": "git", "tools": {}}, "wrong at tools: Input should be a valid list"),
        ({"module_name": "git", "tools": [tool("git.push"), {}]}, "wrong at tools.1.name: Field required"),
        ({"module_name": "git", "tools": ["git.push"]}, "wrong at tools.0: "),
        # One module must not take over another's tools.
        (manifest_of("mail", "send"), "is that of module 'mail', not of 'git'"),
        (manifest_of("Git", "push"), "is that of module 'Git', not of 'git'"),
        ({"module_name": "git", "tools": [tool("mail.send")]}, "tool 'mail.send' is not named 'git.<method>'"),
        ({"module_name": "git", "tools": [tool("git2.push")]}, "tool 'git2.push' is not named"),
        (
            {"module_name": "git", "tools": [{**tool("git.push"), "former_names": ["mail.send"]}]},
            "tool 'mail.send' is not named",
        ),
        ({"module_name": "git", "tools": [tool("gitpush")]}, "tool 'gitpush' is not named"),
        ({"module_name": "git", "tools": [tool("git. push")]}, "tool 'git. push' is not named"),
        ({"module_name": "git", "tools": [tool("git.\x1b[2J")]}, r"tool 'git.\x1b[2J' is not named"),
        (manifest_of("git", "push", "pull", "push"), "tool 'git.push' is listed twice"),
        (manifest_of("git", *map(str, range(MAX_TOOLS + 1))), "10001 tools; 10000 are allowed"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(document: dict[str, Any], reason: str) -> None:
    """The refusal names what is wrong, in one bounded line."""
    with pytest.raises(ManifestRefused) as caught:
        admit("git", document)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"required_permission": None}, "required_permission"),
        ({"effect": "maybe"}, "effect"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"idempotent": "perhaps"}, "idempotent"),
        ({"annotations": ["readOnlyHint"]}, "annotations"),
        ({"annotations": {"readOnlyHint": "perhaps"}}, "annotations.readOnlyHint"),
        ({"input_schema": "any"}, "input_schema"),
        ({"output_schema": [1]}, "output_schema"),
        ({"tags": None}, "tags"),
        ({"version": 1}, "version"),
        ({"daily_limit": "many"}, "daily_limit"),
        ({"parameters": {"a": 1}}, "parameters"),
        ({"parameters": ["a", 1]}, "parameters.0"),
        ({"description": ["long"]}, "description"),
    ],
)
def test_a_tool_that_is_wrong_is_closed_alone(fields: dict[str, Any], where: str) -> None:
    """The others come in; and it is closed for whoever reads the manifest, of whichever release."""
    document = {"module_name": "git", "tools": [tool("git.push", **fields), tool("git.log")]}
    manifest = admit("git", document)

    assert [one.name for one in manifest.tools] == ["git.push", "git.log"]
    fault = broken_because(manifest.tools[0].required_permission)
    assert f"its definition is wrong at {where}" in str(fault)
    assert len(str(fault)) < 200
    assert closed_tools(manifest) == ("git.push",)
    again = admit("git", manifest.model_dump(mode="json", exclude_none=True))
    assert again == manifest
    assert unknown_fields(document) == []


@pytest.mark.parametrize(("schema", "means"), [(True, {}), (False, {"not": {}})])
def test_a_schema_may_be_true_or_false(schema: bool, means: dict[str, Any]) -> None:
    """JSON Schema has these forms: anything, and nothing."""
    document = {"module_name": "git", "tools": [tool("git.push", input_schema=schema, output_schema=schema)]}
    (one,) = admit("git", document).tools

    assert (one.input_schema, one.output_schema) == (means, means)


def test_a_refusal_shows_little_of_a_long_name() -> None:
    """A hostile name does not fill the log."""
    with pytest.raises(ManifestRefused) as caught:
        admit("git", manifest_of("x" * 1_000_000))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<html>", "manifest is not JSON"),
        (b"[]", "manifest is not a JSON object"),
        (b'{"module_name": "git", "tools": [], "x": NaN}', "NaN"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_text_that_is_no_json_object_is_refused(data: bytes, reason: str) -> None:
    """The refusal says why."""
    with pytest.raises(ManifestRefused, match=reason):
        read_document(data)


def test_an_unknown_permission_closes_its_tool_only() -> None:
    """The manifest comes in, and the closed tools can be reported."""
    tools = [
        tool("git.push", required_permission="superuser"),
        tool("git.log"),
        tool("git.gc", required_permission="Admin"),
    ]
    manifest = admit("git", {"module_name": "git", "tools": tools})
    assert closed_tools(manifest) == ("git.gc", "git.push")


def test_unknown_fields_are_named_once() -> None:
    """Wherever they stand; the fields that we know are not among them."""
    parameter = {"name": "a", "type": "string", "default": 1}
    tools = [tool(f"git.{n}", icon="x", tags=["y"], parameters=[parameter]) for n in range(3)]
    document = {"module_name": "git", "tools": tools, "vendor": {"a": 1}}
    admit("git", document)
    assert unknown_fields(document) == ["tools[].icon", "tools[].parameters[].default", "vendor"]


def test_the_protocols_other_annotations_are_no_news() -> None:
    """Those of the Model Context Protocol that say nothing about repeats are not named; what nobody knows is."""
    known = {"title": "Log", "readOnlyHint": True, "idempotentHint": None, "openWorldHint": False}
    tools = [tool("git.log", annotations=known), tool("git.gc", annotations=None), tool("git.x", annotations={"y": 1})]
    manifest = admit("git", {"module_name": "git", "tools": tools})
    assert manifest.tools[0].annotations is not None
    assert manifest.tools[0].annotations.readOnlyHint
    assert unknown_fields({"module_name": "git", "tools": tools}) == ["tools[].annotations.y"]


def test_only_some_unknown_fields_are_named() -> None:
    """A module with a thousand of them does not fill the log."""
    named = unknown_fields({"module_name": "git", "tools": [], **{f"{n}{'x' * 500}": n for n in range(1000)}})
    assert len(json.dumps(named)) < 2000
