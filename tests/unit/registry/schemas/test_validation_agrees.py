"""Whatever a schema and arguments are, another validator comes to the same."""

from typing import Any

from hypothesis import HealthCheck, assume, given, reject, settings
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from support.schemas.examples import examples
from support.schemas.json_schemas import ARGUMENTS, input_schemas
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.schemas.validation import checked, schema_fault


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(schema=input_schemas(), arguments=ARGUMENTS)
def test_the_reference_implementation_agrees(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """On what is refused; and with its defaults a call is as right as without."""
    tool = ToolDefinition(name="owls.count", input_schema=schema)
    assume(schema_fault(tool) is None)
    own = input_schema(tool)
    judge: Any = validator_for(own, default=Draft202012Validator)(own)
    found = checked(tool, arguments)

    try:
        is_right = judge.is_valid(arguments if found.arguments is None else found.arguments)
    except TypeError:  # it trips over schemas of older drafts, such as `items: false` with `additionalItems`
        reject()
    assert is_right == (found.arguments is not None)
    if found.arguments is not None:
        assert arguments.keys() <= found.arguments.keys()
