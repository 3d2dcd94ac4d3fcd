"""Functions of our own that log: what `TOOLFLEET_LOCAL_TOOLS` names in tests of that."""

import asyncio

from toolfleet.sdk import Context
from toolfleet.tags import local_tool


@local_tool(effect="read")
async def hoot(context: Context) -> str:
    """Say something on the loop."""
    await context.log("info", {"hoots": 1}, logger="owl")
    return str(context.log_level)


@local_tool(effect="read")
async def call(context: Context) -> str:
    """Say something in a thread, and far too often."""

    def work() -> None:
        for number in range(300):
            context.log("error", f"at {number}")

    await asyncio.to_thread(work)
    return "called"


tools = [hoot, call]
