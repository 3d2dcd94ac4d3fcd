"""Says in whose name a call is made: the module is told by the fleet, under a key, and never by a model."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        (greet,) = [tool for tool in await fleet.tools(ada) if tool.name == "owls.greet"]
        print("a model may say:", [parameter.name for parameter in greet.parameters])
        result = await fleet.call(ToolCall(tool_name="owls.greet"), ada)
        print(result.result)


asyncio.run(main())

# It prints:
# a model may say: []
# Hello, ada, who may do what a user may.
