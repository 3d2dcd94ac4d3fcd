"""Puts calls into Celery's canvas: a chain goes on once a link has succeeded."""

import asyncio

from celery import chain

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        count = ToolCall(tool_name="owls.count", arguments={"wood": "Arden"})
        adopt = ToolCall(tool_name="owls.adopt", arguments={"owl": "Soren"}, user_id="ada")
        links = [await fleet.canvas.signature(call, ada) for call in (count, adopt)]
        await asyncio.to_thread(chain(*links).apply_async)
        for link in links:
            result = await fleet.canvas.result_of(link, timeout=30)
            print(result and result.success)


asyncio.run(main())

# It prints:
# True
# True
