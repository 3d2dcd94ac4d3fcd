"""Shows the one retry: a tool was busy and had done nothing, so the fleet came back."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        result = await fleet.call(ToolCall(tool_name="owls.visit", arguments={"owl": "Archimedes"}), ada)
        print(result.result, "| attempts:", result.audit.attempts)


asyncio.run(main())

# It prints:
# Archimedes is at home | attempts: 2
