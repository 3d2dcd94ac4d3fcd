"""Has long work done as a job: it is started, polled, and the conversation hears of its end, whatever stops meanwhile."""

import asyncio

from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet

ada = Caller(user_id="ada", permission="user")
survey = ToolCall(tool_name="owls.start_survey", arguments={"wood": "Sherwood"})
# `$from` takes a value from the start's result; the job ends when a poll's result fulfils `until`.
status = Poll(
    tool_name="owls.survey_status",
    arguments={"survey": {"$from": "survey"}},
    interval_seconds=0.2,
    until={"status": ["completed", "failed"]},
)


async def main() -> None:
    async with ToolFleet() as fleet:
        job = await fleet.jobs.start(survey, status, conversation=Conversation(conversation_id="c-1"), caller=ada)
        print(job.state)
        async for event in fleet.wakeups.completions("c-1"):  # an agent without HTTP waits so
            print(event.type, event.result)
            break
        print([each.state for each in await fleet.jobs.list(ada) if each.job_id == job.job_id])


asyncio.run(main())

# It prints:
# starting
# job.completed {'status': 'completed', 'owls': 41}
# ['completed']
