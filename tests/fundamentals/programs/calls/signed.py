"""Signs calls: an agent without the fleet's key has nothing run, and believes nothing that is signed with another."""

import asyncio

from toolfleet import Caller, Settings, ToolCall, ToolFleet

eve = Caller(user_id="eve", permission="user")
forger = Settings(signing_key="not the key of this fleet, but long enough")  # the rest is the fleet's


async def main() -> None:
    async with ToolFleet(settings=forger) as fleet:
        forged = ToolCall(tool_name="owls.adopt", arguments={"owl": "Errol"})
        print((await fleet.call(forged, eve, timeout=5)).error_code)
    async with ToolFleet() as fleet:  # its key is in toolfleet.toml
        signed = ToolCall(tool_name="owls.adopt", arguments={"owl": "Pigwidgeon"})
        print((await fleet.call(signed, eve)).result)


asyncio.run(main())

# It prints:
# outcome_unknown
# ['Pigwidgeon']
