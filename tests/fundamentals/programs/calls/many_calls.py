"""Calls several tools side by side: the results come in the order of the calls."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        woods = ("Sherwood", "Arden", "Fangorn")
        calls = [ToolCall(tool_name="owls.count", arguments={"wood": wood}) for wood in woods]
        for result in await fleet.call_many(calls, ada):
            print(result.result)


asyncio.run(main())

# It prints:
# {'wood': 'Sherwood', 'owls': 3}
# {'wood': 'Arden', 'owls': 3}
# {'wood': 'Fangorn', 'owls': 3}
