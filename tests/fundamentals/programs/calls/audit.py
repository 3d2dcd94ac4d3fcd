"""Reads what the fleet has noted of a call: who, which tool, how it ended, and what was decided."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        result = await fleet.call(ToolCall(tool_name="owls.count", arguments={"wood": "Arden"}), ada)
        audit = result.audit  # the same id stands in logs, in Flower and in `toolfleet audit tail`
        print(audit.tool, "| attempts:", audit.attempts, "| has an id:", audit.call_id != "")
        print("it waited and ran for some ms:", audit.queued_ms is not None, audit.duration_ms is not None)


asyncio.run(main())

# It prints:
# owls.count | attempts: 1 | has an id: True
# it waited and ran for some ms: True True
