"""Errors of the Model Context Protocol in the results of failed calls."""

from typing import Any

import pytest

from toolfleet_registry.functions.passed_methods import PassedError, passed_error


@pytest.mark.parametrize("data", [None, {"requiredCapabilities": {"sampling": {}}}, ["owl"], 0])
def test_an_error_is_found_as_it_was_worded(data: Any) -> None:
    """Code, message and data come back."""
    error = PassedError(-32021, "it needs sampling", data)

    assert passed_error(error.worded()) == error


@pytest.mark.parametrize("data", ["x" * 20_000, {"owl": object()}])
def test_data_that_cannot_be_passed_are_left_out(data: Any) -> None:
    """The error itself comes all the same."""
    assert passed_error(PassedError(-32603, "no", data).worded()) == PassedError(-32603, "no")


@pytest.mark.parametrize(
    "result",
    [
        None,
        "mcp_error",
        {},
        {"mcp_error": "no"},
        {"mcp_error": {"code": "-32603", "message": "no"}},
        {"mcp_error": {"code": True, "message": "no"}},
        {"mcp_error": {"code": 2**40, "message": "no"}},
        {"mcp_error": {"code": -32603}},
    ],
)
def test_other_results_have_no_error(result: object) -> None:
    """A module may return whatever it likes with a failure."""
    assert passed_error(result) is None
