"""Reads failures: each one is a result with a code, and says whether anything has happened."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        for name, wood in (("owls.count", "Nowhere"), ("owls.cuont", "Arden")):
            result = await fleet.call(ToolCall(tool_name=name, arguments={"wood": wood}), ada)
            print(result.error_code, "| effect:", result.effect_state)
            print(result.error)
            print(result.hint)  # what a model can do now


asyncio.run(main())

# It prints:
# module_error | effect: none
# There is no such wood.
# It only reads, so nothing has changed: correct the call by what the error says; it may be repeated.
# unknown_tool | effect: none
# Unknown tool: owls.cuont
# Did you mean owls.count?
