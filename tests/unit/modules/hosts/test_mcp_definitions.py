"""Tools of MCP servers as a manifest describes them."""

from typing import Any

import mcp_types as types
import pytest

from toolfleet_modules.hosts.mcp.tool_list import offer_of

OBJECT: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<n>x"}}},
        {"type": "object", "required": ["a", "a"]},
        {"type": "object", "properties": {"a": {"type": "file"}}},
        {"type": "object", "properties": {f"p{i}": {"pattern": "^.{1,10000}$"} for i in range(12)}},
    ],
)
def test_an_output_schema_that_cannot_be_used_costs_no_tool(schema: dict[str, Any]) -> None:
    """Its results are not checked; an input schema that cannot be used costs the tool."""
    fine = types.Tool(name="fine", input_schema=OBJECT, output_schema=schema)
    none = types.Tool(name="none", input_schema={**schema, "properties": {"a": {"type": "file"}}})
    offer = offer_of("zoo", [fine, none], (), is_trusted=False)

    assert [(each.original, each.definition.output_schema) for each in offer.tools.values()] == [("fine", None)]
    assert list(offer.faults) == ["none"]
