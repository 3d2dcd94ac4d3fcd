"""Finds the tools with sensitive results: a module's own words about their calls are kept nowhere, for they may quote them.

A result itself is kept for its caller; where `TOOLFLEET_CALL_CONTENTS` keeps a copy for operators, a sensitive one is hidden there.
"""

import weakref

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.policy.sensitive_arguments import has_mark

OUR_WORDS = frozenset({"timed_out", "expired", "cancelled", "outcome_unknown", "fleet_unavailable", "internal"})
"""Error codes of ends that no module has worded."""

_known: dict[int, tuple["weakref.ref[ToolDefinition]", bool]] = {}


def has_sensitive_results(tool: ToolDefinition) -> bool:
    """Return whether anything in the tool's `output_schema` is marked as in `policy/sensitive_arguments.py`, or cannot be followed.

    Computed once for each definition, and never fails.
    """
    if tool.output_schema is None:
        return False
    key = id(tool)
    known = _known.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = has_mark(tool.output_schema)
    _known[key] = (weakref.ref(tool, lambda _: _known.pop(key, None)), found)
    return found
