"""Which of the files that are not served as they stand make a command fail."""

import pytest

from toolfleet_cli.console.load_errors import show
from toolfleet_registry.contracts.load_errors import InEffect, ToolLoadError


@pytest.mark.parametrize(
    ("error_type", "in_effect", "fails"),
    [
        ("SecurityError", "current", False),  # what a scan with `warn` finds in a file that is served
        ("SecurityError", "none", True),
        ("SecurityError", "previous", True),
        ("ImportError", "current", True),
        ("ImportError", "previous", True),
        ("DuplicateTool", "none", True),
    ],
)
def test_a_warning_about_a_served_file_is_no_failure(error_type: str, in_effect: InEffect, *, fails: bool) -> None:
    """The command says it, and ends with 0; whatever is not served as it stands ends it with 1."""
    error = ToolLoadError(file="/tools/a.py", error_type=error_type, message="It imports os.", in_effect=in_effect)

    assert show([error]) is fails
    assert show([]) is False
