"""Submits a call, does something else, and asks for the result later."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        nap = ToolCall(tool_name="owls.sleep", arguments={"seconds": 0.3})
        handle = await fleet.submit(nap, ada)  # returns at once
        print("the call has an id:", handle.id != "")
        result = await handle.result()
        print(result.result, "|", await handle.status())


asyncio.run(main())

# It prints:
# the call has an id: True
# awake | done
