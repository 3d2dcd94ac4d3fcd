"""Waiting for what an agent lists."""

import asyncio

from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, ToolFleet


async def until_listed(fleet: ToolFleet, caller: Caller, *modules: str) -> None:
    """Return when these are the modules whose tools the caller's agent lists."""
    listed = {""}
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while listed != set(modules):
            await asyncio.sleep(0.02)
            listed = {tool.name.partition(".")[0] for tool in await fleet.tools(caller)}
