"""Calls one tool: says which, with what arguments, and who asks."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        call = ToolCall(tool_name="owls.count", arguments={"wood": "Sherwood"})
        result = await fleet.call(call, ada)
        print(result.success, result.result)
        print("attempts:", result.audit.attempts)


asyncio.run(main())

# It prints:
# True {'wood': 'Sherwood', 'owls': 3}
# attempts: 1
