"""Lists what callers may use: what is not listed for one cannot be called, either."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")
root = Caller(user_id="root", permission="admin", allowed_modules=frozenset({"owls"}))


async def main() -> None:
    async with ToolFleet() as fleet:
        users = {tool.name for tool in await fleet.tools(ada)}
        admins = {tool.name for tool in await fleet.tools(root)}
        print(admins - users)

        result = await fleet.call(ToolCall(tool_name="owls.release", arguments={"owl": "Hedwig"}), ada)
        print(result.error_code, "|", result.error)


asyncio.run(main())

# It prints:
# {'owls.release'}
# permission_denied | Tool 'owls.release' needs 'admin'; caller is 'user'.
