"""Shows which files of tool folders are not served as they stand, on stderr: what a command prints is for others to read."""

from collections.abc import Sequence

from toolfleet_cli.console.output import note
from toolfleet_registry.contracts.load_errors import ToolLoadError

_IN_EFFECT = {
    "previous": "its version before is served",
    "current": "it is served all the same",
    "none": "none of its tools are served",
}


def show(errors: Sequence[ToolLoadError]) -> bool:
    """Show them, one a line; returns whether any is more than a warning, which is what a scan finds in a file that is served."""
    for error in errors:
        place = error.file if error.line is None else f"{error.file}:{error.line}"
        note(f"{place}: {error.error_type}: {error.message} Now {_IN_EFFECT[error.in_effect]}.")
    return any(error.error_type != "SecurityError" or error.in_effect != "current" for error in errors)
