"""Gets a file from a tool: the result names it in a sentence, and its bytes stand in `files`."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        result = await fleet.call(ToolCall(tool_name="owls.photograph", arguments={"owl": "Hedwig"}), ada)
        print(result.result)
        for file in result.files:
            print(file.kind, file.name, file.media_type)


asyncio.run(main())

# It prints:
# image 1 'Hedwig.png' (image/png, 70 bytes)
# image Hedwig.png image/png
