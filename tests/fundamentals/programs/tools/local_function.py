"""Calls a function that the workers run themselves: `owl_functions.py` stands in `local_tools` of toolfleet.toml."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        find = ToolCall(tool_name="local.find_owls", arguments={"wood": "Arden", "most": 1})
        print((await fleet.call(find, ada)).result)


asyncio.run(main())

# It prints:
# ['tawny owl of Arden']
