"""Has calls wait for their turn: `owls.build` says `concurrency_key="nest"`, so that no twig is lost."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        twigs = ("birch", "willow", "ash")
        calls = [ToolCall(tool_name="owls.build", arguments={"nest": "oak", "twig": twig}) for twig in twigs]
        for result in await fleet.call_many(calls, ada):
            print(result.result)


asyncio.run(main())

# It prints:
# ['birch']
# ['birch', 'willow']
# ['birch', 'willow', 'ash']
