"""A tool whose results are sensitive is known by its output schema."""

from typing import Any

import pytest

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.policy.sensitive_results import has_sensitive_results


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, False),
        ({"type": "object", "properties": {"a": {"type": "string", "sensitive": True}}}, True),
        (
            {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"writeOnly": True}}},
            True,
        ),  # through a reference
        ({"$ref": "https://example.org/schema"}, True),  # nobody can look there
        ({"sensitive": False}, False),
    ],
)
def test_any_mark_counts(schema: dict[str, Any] | None, expected: bool) -> None:
    """At any depth; what cannot be followed counts as marked, and a second look says the same."""
    tool = ToolDefinition(name="bank.pay", output_schema=schema)

    assert [has_sensitive_results(tool), has_sensitive_results(tool)] == [expected, expected]
