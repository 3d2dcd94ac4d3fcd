"""Counts larks: a module with a tool that answers at once, and one that takes long and is polled."""

import time

from toolfleet.sdk import Context, Module, ToolError

module = Module("larks", description="Counts larks.")
NEEDED_SECONDS = 1.0
started: dict[str, float] = {}


@module.tool(permission="user", effect="read")
async def count(meadow: str, context: Context) -> dict[str, int]:
    """Count the larks of a meadow.

    Args:
        meadow: Its name.
    """
    await context.progress(0.5, "listening")
    return {"larks": len(meadow)}


@module.tool(permission="user", effect="idempotent")
async def start_census(meadow: str) -> dict[str, str]:
    """Begin to count every lark of a meadow, which takes long."""
    started.setdefault(meadow, time.monotonic())
    return {"census": meadow}


@module.tool(permission="user", effect="read")
async def census(census: str) -> dict[str, object]:
    """Say how far a census is."""
    if census not in started:
        raise ToolError("There is no such census.")
    is_over = time.monotonic() - started[census] > NEEDED_SECONDS
    return {"status": "completed" if is_over else "running", "larks": 7 * len(census)}


app = module.app
