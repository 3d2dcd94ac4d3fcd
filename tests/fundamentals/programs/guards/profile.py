"""Lets an agent do less than its caller may, and asks which rule decides."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")
reader = Caller(user_id="ada", permission="user", agent="reader")  # [agents.reader] in the fleet's toolfleet.toml


async def main() -> None:
    async with ToolFleet() as fleet:
        adopt = ToolCall(tool_name="owls.adopt", arguments={"owl": "Soren"})
        print((await fleet.call(adopt, reader)).error)
        print("owls.adopt" in [tool.name for tool in await fleet.tools(ada)])
        print("owls.adopt" in [tool.name for tool in await fleet.tools(reader)])

        why = await fleet.modules.explain("owls.adopt", reader)
        print(why.is_allowed, why.decided_by and why.decided_by.place.rpartition("/")[2])
        count = ToolCall(tool_name="owls.count", arguments={"wood": "Arden"})
        print((await fleet.call(count, reader)).success)


asyncio.run(main())

# It prints:
# Tool 'owls.adopt' is not among those of agent 'reader'.
# True
# False
# False toolfleet.toml, line 13
# True
