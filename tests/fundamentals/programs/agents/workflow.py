"""Puts jobs under one name, looks at them, and ends them together."""

import asyncio

from toolfleet import Caller, Conversation, Schedule, ToolFleet

ada = Caller(user_id="ada", permission="user")
later = Schedule(delay_seconds=3600)


async def main() -> None:
    async with ToolFleet() as fleet:
        for text in ("Count the owls.", "Feed the owls."):
            place = Conversation(conversation_id="c-3")
            await fleet.jobs.start(schedule=later, message=text, conversation=place, caller=ada, workflow_id="evening")

        print([job.state for job in await fleet.jobs.list(ada, workflow_id="evening")])
        print("ended:", await fleet.jobs.cancel_workflow("evening", ada))
        print([job.state for job in await fleet.jobs.list(ada, workflow_id="evening")])


asyncio.run(main())

# It prints:
# ['waiting', 'waiting']
# ended: 2
# ['cancelled', 'cancelled']
