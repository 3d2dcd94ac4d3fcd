"""Hides personal data in what an agent's calls say and bring: nobody stores it, and no tool is told."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user", agent="discreet")
count = ToolCall(tool_name="owls.count", arguments={"wood": "ada@example.org, +44 20 7946 0958"})


async def main() -> None:
    async with ToolFleet() as fleet:
        result = await fleet.call(count, ada)
        print(result.error or result.result)


asyncio.run(main())

# It prints:
# {'wood': 'a***@***.org, ****0958', 'owls': 3}
