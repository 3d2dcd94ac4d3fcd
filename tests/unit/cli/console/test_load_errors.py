"""Which of the files that are not served as they stand make a command fail."""

import pytest

from toolfleet_cli.console import show_load_errors
from toolfleet_registry.contracts.tool_definition import InEffect, ToolLoadError


@pytest.mark.parametrize(
    ("error_type", "in_effect", "fails"),
    [
        ("SecurityError", "current", False),  # what a scan with `warn` finds in a file that is served
        ("SecurityError", "none", True),
        ("SecurityError", "previous", True),
        ("ImportError", "current", True),
        ("ImportError", "previous", True),
        ("DuplicateTool", "none", True),
        ("NoTools", "current", False),  # nothing is wrong with the file
        ("NoTools", "none", False),
    ],
)
def test_a_warning_about_a_served_file_is_no_failure(error_type: str, in_effect: InEffect, *, fails: bool) -> None:
    """The command says it, and ends with 0; whatever is not served as it stands ends it with 1."""
    error = ToolLoadError(file="/tools/a.py", error_type=error_type, message="It imports os.", in_effect=in_effect)

    assert show_load_errors([error]) is fails
    assert show_load_errors([]) is False


def error(file: str, error_type: str, in_effect: InEffect) -> ToolLoadError:
    return ToolLoadError(file=file, error_type=error_type, message=f"{error_type} is wrong.", in_effect=in_effect)


def test_a_file_has_one_sentence_about_what_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    """However many errors it has; a file without tools has none, as its note says it."""
    show_load_errors(
        [
            error("exits.py", "SystemExit", "none"),
            error("plain.py", "NoTools", "current"),
            error("dup.py", "DuplicateTool", "current"),
            error("exits.py", "SecurityError", "none"),
            error("reads.py", "SecurityError", "current"),
            error("half.py", "SyntaxError", "previous"),
        ]
    )

    assert capsys.readouterr().err.splitlines() == [
        "exits.py: SystemExit: SystemExit is wrong.",
        "exits.py: SecurityError: SecurityError is wrong. None of its tools are served.",
        "plain.py: NoTools: NoTools is wrong.",
        "dup.py: DuplicateTool: DuplicateTool is wrong. Its other tools are served.",
        "reads.py: SecurityError: SecurityError is wrong. The file is served.",
        "half.py: SyntaxError: SyntaxError is wrong. Its version before is served.",
    ]
