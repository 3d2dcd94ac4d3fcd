"""Asks the agent's own gate before a call of a tool that requires it."""

import asyncio

from toolfleet import Caller, GateDecision, ToolCall, ToolDefinition, ToolFleet
from toolfleet.tags import ToolContext, ToolDef

ada = Caller(user_id="ada", permission="user")


class Politeness:
    async def check(self, tool: ToolDef | ToolDefinition, ctx: ToolContext) -> GateDecision:
        is_polite = "please" in ctx.raw_arg  # the arguments as JSON
        return GateDecision(approved=is_polite, reason="" if is_polite else "Say please.")


async def main() -> None:
    async with ToolFleet(gate=Politeness()) as fleet:
        for text in ("come", "please come"):
            result = await fleet.call(ToolCall(tool_name="owls.announce", arguments={"text": text}), ada)
            print(result.error_code, "|", result.error or result.result)


asyncio.run(main())

# It prints:
# blocked_by_gate | Say please.
# None | told everybody: please come
