"""Limits how often a user calls a tool: `owls.feed` says `daily_limit=2`, and the fleet counts."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        for owl in ("Hedwig", "Errol", "Pigwidgeon"):
            result = await fleet.call(ToolCall(tool_name="owls.feed", arguments={"owl": owl}), ada)
            print(result.result or result.error_code)

        use = (await fleet.remaining(ada)).tools["owls.feed"]
        print("used:", use.used, "left:", use.left)


asyncio.run(main())

# It prints:
# Hedwig is full
# Errol is full
# rate_limited
# used: 2 left: 0
