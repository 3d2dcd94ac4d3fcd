"""A conversation that is woken: it begins long work and goes; whoever reads its news later goes on with it.

`toolfleet up --module examples/larks` first; then `python examples/woken.py`.
"""

import asyncio
from uuid import uuid4

from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")
status = Poll(tool_name="larks.census", arguments={"census": {"$from": "census"}}, interval_seconds=1)


async def asks(conversation: Conversation) -> None:
    """One turn: the user asks, the work begins, the turn is over."""
    async with ToolFleet() as fleet:
        start = ToolCall(tool_name="larks.start_census", arguments={"meadow": "Oxmoor"})
        job = await fleet.jobs.start(start, status, conversation=conversation, caller=ada, deadline=60)
        print("I will tell you. The job is", job.state)


async def is_woken(conversation: Conversation) -> None:
    """Another turn, perhaps of another process: the news come at least once, so note `wake_id` with what is done."""
    async with ToolFleet() as fleet:
        async for woken in fleet.wakeups.completions(str(conversation.conversation_id)):
            print(woken.type, woken.result)
            break


async def main() -> None:
    """Play both turns."""
    conversation = Conversation(conversation_id=f"c-{uuid4()}")
    await asks(conversation)
    await is_woken(conversation)


asyncio.run(main())
