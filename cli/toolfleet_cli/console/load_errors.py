"""Shows which files of tool folders are not served as they stand, on stderr: what a command prints is for others to read."""

from collections import defaultdict
from collections.abc import Sequence

from toolfleet_cli.console.output import note
from toolfleet_registry.contracts.tool_definition import NO_TOOLS, ToolLoadError

_IN_EFFECT = {
    "previous": " Its version before is served.",
    "current": " The file is served.",
    "none": " None of its tools are served.",
}


def show(errors: Sequence[ToolLoadError]) -> bool:
    """Show them, one a line, and for each file once what of it is served; returns whether any is more than a note."""
    by_file = defaultdict[str, list[ToolLoadError]](list)
    for error in errors:
        by_file[error.file].append(error)
    for found in by_file.values():
        state = _IN_EFFECT[found[-1].in_effect]
        if found[-1].in_effect == "current" and any(error.error_type == "DuplicateTool" for error in found):
            state = " Its other tools are served."
        for error in found:
            place = error.file if error.line is None else f"{error.file}:{error.line}"
            says_state = error is found[-1] and error.error_type != NO_TOOLS
            note(f"{place}: {error.error_type}: {error.message}{state if says_state else ''}")
    return not all(error.is_note for error in errors)
