"""Bounds what one run of an agent may call: its profile has `run_limit = 2`, and a third call is refused."""

import asyncio

from toolfleet import Caller, Conversation, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user", agent="brief")
count = ToolCall(tool_name="owls.count", arguments={"wood": "Arden"})


async def main() -> None:
    async with ToolFleet() as fleet:
        run = Conversation(run_id="turn-1")
        results = [await fleet.call(count, ada, conversation=run) for _ in range(3)]
        print(*(result.error_code or "counted" for result in results), sep="\n")
        print(results[-1].hint)

        left = await fleet.remaining(ada, conversation=Conversation(run_id="turn-2"))
        print("the next run has", left.totals["owls.count"].left)

        nameless = await fleet.call(count, ada)
        print(nameless.error)


asyncio.run(main())

# It prints:
# counted
# counted
# rate_limited
# Nothing was executed, and this tool has no calls left: answer with what you have now.
# the next run has 2
# Tool call refused: its agent's profile has a run_limit for it, and the call has no 'run_id' to count by.
