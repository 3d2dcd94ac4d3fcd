"""Finds tools by words: a model with thousands of them is offered the few that matter."""

import asyncio

from toolfleet import Caller, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        for tool in await fleet.search("picture", ada, limit=3):
            print(tool.name, "|", tool.description)


asyncio.run(main())

# It prints:
# owls.photograph | Take a picture of an owl.
