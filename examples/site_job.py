"""Has a site built as a job: it is started, polled, and the conversation hears of its end."""

import asyncio

from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet

caller = Caller(user_id="ada", permission="admin", allowed_modules="*")
place = Conversation(conversation_id="c-1", platform="chat", platform_channel_id="owls")


async def main() -> None:
    async with ToolFleet() as fleet:
        start = ToolCall(tool_name="claude_code.run_task", arguments={"prompt": "A site about owls"})
        # `$from` takes a value from the start's result; the job ends when a poll's result fulfils `until`.
        status = Poll(
            tool_name="claude_code.task_status",
            arguments={"task_id": {"$from": "task_id"}},
            interval_seconds=2,
            until={"status": ["completed", "failed"]},
        )
        job = await fleet.jobs.start(start, status, conversation=place, deadline=600, caller=caller)
        # For an agent without HTTP. An event is done with when the next one is asked for: until then it may come again.
        async for event in fleet.wakeups.completions("c-1"):
            if event.job_id == job.job_id:
                print(event.type, event.result["workspace"])
                break


asyncio.run(main())
