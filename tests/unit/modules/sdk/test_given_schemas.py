"""Tools whose arguments' schema is given: by functions that name them, and by one that takes whatever comes."""

import asyncio
from typing import Any

import pytest

from toolfleet.sdk import Context, Module, ModuleResult
from toolfleet_registry.admission_rules import admit

DAY = {"type": "integer", "minimum": 1, "maximum": 31, "description": "Of the month."}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"day": DAY, "from-where": {"enum": ["barn", "wood"], "default": "wood"}, "any": True},
    "required": ["day"],
    "additionalProperties": False,
}
seen: list[dict[str, Any]] = []


def bridge() -> Module:
    module = Module("owls")

    async def forward(context: Context, user_id: str | None = None, **arguments: Any) -> int:  # noqa: D417 - the schema says it
        """Ask somebody else.

        Args:
            day: As the schema says.

        """
        seen.append({**arguments, "user_id": user_id, "call_id": context.call_id})
        return len(arguments)

    module.add(forward, name="count", input_schema=SCHEMA)
    return module


def call(module: Module, **arguments: Any) -> ModuleResult:
    async def run() -> ModuleResult:
        async with module.client(user_id="ada") as client:
            return await client.send("count", arguments, user_id="ada", call_id="c1")

    seen.clear()
    return asyncio.run(run())


def test_a_bridge_gets_all_that_its_schema_allows() -> None:
    """By names that no parameter could have, with defaults filled in, the user and the context."""
    assert call(bridge(), day=4, any=[1]).result == 3
    assert seen == [{"day": 4, "any": [1], "from-where": "wood", "user_id": "ada", "call_id": "c1"}]


@pytest.mark.parametrize("arguments", [{}, {"day": 32}, {"day": 4, "night": 1}, {"day": 4, "from-where": "sea"}])
def test_what_the_schema_forbids_is_told(arguments: dict[str, Any]) -> None:
    """Also to who has not asked the fleet; the function does not run."""
    result = call(bridge(), **arguments)

    assert (result.success, result.effect_state) == (False, "none")
    assert str(result.error).startswith("Invalid arguments for owls.count: ")
    assert seen == []


def test_the_manifest_has_the_schema_as_it_was_given() -> None:
    """And the fleet admits it."""
    manifest = bridge().manifest
    (tool,) = admit("owls", manifest.model_dump(mode="json")).tools

    assert tool.input_schema == SCHEMA
    assert [(each.name, each.required) for each in tool.parameters] == [
        ("day", True),
        ("from-where", False),
        ("any", False),
    ]


def test_a_functions_own_parameters_may_have_a_narrower_schema() -> None:
    """It shows more than the signature says, and is checked; a parameter that it leaves out is no model's to write."""
    module = Module("owls")

    def count(day: int, debug: bool = False) -> tuple[int, bool]:  # noqa: FBT002 - a tool's arguments
        return day, debug

    module.add(count, input_schema={"properties": {"day": DAY}, "required": ["day"], "additionalProperties": False})

    assert call(module, day=4).result == [4, False]
    assert not call(module, day=40).success
    assert not call(module, day=4, debug=True).success


def test_what_does_not_agree_is_an_error_at_once() -> None:
    """A module that starts has no such mistake."""

    def count(day: int) -> int:
        return day

    def mixed(day: int, **rest: Any) -> int:
        return day

    def open_to_all(user_id: str, **rest: Any) -> str:
        return user_id

    wrong: list[tuple[Any, Any, str]] = [
        (count, {"properties": {"night": {}}}, "has 'night', which is no parameter of it"),
        (count, {"properties": {"day": DAY}}, "does not require 'day', which has no default"),
        (count, {"type": "array"}, "is not that of an object"),
        (count, {"properties": {"day": {"type": "whole"}}, "required": ["day"]}, "owls.count: "),
        (count, [], "is no dictionary"),
        (count, {"properties": {"day": {"enum": {1}}}}, "is no JSON"),
        (mixed, {"properties": {"day": DAY}}, r"takes 'day' beside its \*\*arguments"),
        (open_to_all, {"properties": {"user_id": {}}}, "has 'user_id', which is filled in"),
    ]
    for function, schema, why in wrong:
        with pytest.raises((TypeError, ValueError), match=why):
            Module("owls").add(function, input_schema=schema)
