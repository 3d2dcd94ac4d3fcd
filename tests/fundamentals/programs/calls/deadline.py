"""Gives a call a deadline: it ends by then, and says honestly that nobody knows what the tool has done."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        nap = ToolCall(tool_name="owls.sleep", arguments={"seconds": 60})
        result = await fleet.call(nap, ada, timeout=3)
        print(result.error_code, "| effect:", result.effect_state)
        print(result.hint)  # for the model


asyncio.run(main())

# It prints:
# timed_out | effect: unknown
# It may have been executed: find out with a tool that only reads, or ask the person, before repeating it, for a repeat could do it twice.
