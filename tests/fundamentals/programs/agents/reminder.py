"""Makes a reminder: a job without a call, at a time; its message is what the conversation is told."""

import asyncio

from toolfleet import Caller, Conversation, Schedule, ToolFleet

ada = Caller(user_id="ada", permission="user")
place = Conversation(conversation_id="c-2")


async def main() -> None:
    async with ToolFleet() as fleet:
        soon = Schedule(delay_seconds=0.5)  # or at=…, or cron="0 9 * * mon-fri", timezone="Europe/Berlin"
        await fleet.jobs.start(schedule=soon, message="Feed the owls.", conversation=place, caller=ada)
        async for event in fleet.wakeups.completions("c-2"):
            print(event.message)
            break


asyncio.run(main())

# It prints:
# Feed the owls.
