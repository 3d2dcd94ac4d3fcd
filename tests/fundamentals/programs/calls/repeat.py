"""Names an intention: a second call under the same key brings the first one's result, and runs nothing."""

import asyncio

from toolfleet import Caller, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")


async def main() -> None:
    async with ToolFleet() as fleet:
        adopt = ToolCall(tool_name="owls.adopt", arguments={"owl": "Hedwig"}, idempotency_key="ada-adopts-hedwig")
        for _ in range(2):
            result = await fleet.call(adopt, ada)
            print("adopted:", result.result)

        other = adopt.model_copy(update={"arguments": {"owl": "Errol"}})
        print((await fleet.call(other, ada)).error_code)


asyncio.run(main())

# It prints:
# adopted: ['Hedwig']
# adopted: ['Hedwig']
# conflict
