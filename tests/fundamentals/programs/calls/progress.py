"""Follows a tool that says how far it is."""

import asyncio

from toolfleet import Caller, Progress, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


def show(progress: Progress) -> None:
    print(progress.fraction, progress.message)


async def main() -> None:
    async with ToolFleet() as fleet:
        watch = ToolCall(tool_name="owls.watch", arguments={"hours": 2})
        result = await fleet.call(watch, ada, on_progress=show)
        print(result.result)


asyncio.run(main())

# It prints:
# 0.5 hour 1
# 1.0 hour 2
# watched for 2 hours
