"""Writes the table of the gateway's routes for operators, which the guide to the gateway shows."""

from toolfleet_tasks.resources.table import OPERATIONS

_BELOW = "/operations"


def gateway_routes() -> str:
    """Return the table: each route with its role, and what it does."""
    operations = sorted(OPERATIONS.values(), key=lambda one: (one.path, one.method))
    rows = [
        f"| `{one.method} {one.path.removeprefix(_BELOW)}` | {_summary(one.summary)} | {one.role} |"
        for one in operations
        if one.path.startswith(_BELOW)
    ]
    return "\n".join([f"| route below `{_BELOW}` | what it does | role |", "|---|---|---|", *rows, ""])


def _summary(text: str) -> str:
    return text.rpartition("; for ")[0]
