"""Takes a call back while its tool is at work: the request to the module is ended, too."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        handle = await fleet.submit(ToolCall(tool_name="owls.watch", arguments={"hours": 100}), ada)
        async for progress in handle.progress():
            print(progress.message)
            break  # it has begun
        await handle.cancel()
        result = await handle.result()
        print(result.error_code, "| effect:", result.effect_state)


asyncio.run(main())

# It prints:
# hour 1
# cancelled | effect: unknown
