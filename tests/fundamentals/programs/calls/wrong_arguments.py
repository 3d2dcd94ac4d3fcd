"""Shows what a model is told about wrong arguments: nothing was published, and no module was asked."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        for arguments in ({"wod": "Arden"}, {"wood": "Arden", "trees": 1000}, {"wood": 7}):
            result = await fleet.call(ToolCall(tool_name="owls.count", arguments=arguments), ada)
            print(result.error_code, "|", result.error)


asyncio.run(main())

# It prints:
# invalid_arguments | arguments must not have 'wod' (did you mean 'wood'?); the schema has 'wood', 'trees'. arguments.wood is missing.
# invalid_arguments | arguments.trees must be at most 100.
# invalid_arguments | arguments.wood must be a string, not an integer.
