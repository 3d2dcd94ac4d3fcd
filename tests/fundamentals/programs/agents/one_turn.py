"""Takes a model's tool use in Anthropic's format, and answers it: also when the name is wrong."""

import asyncio

from toolfleet import Caller, ToolFleet
from toolfleet.formats import convert, from_result, to_call

ada = Caller(user_id="ada", permission="user")
# What a model has answered; its second name does not exist.
USES = (
    {"type": "tool_use", "id": "t1", "name": "owls__count", "input": {"wood": "Arden"}},
    {"type": "tool_use", "id": "t2", "name": "owls__cuont", "input": {"wood": "Arden"}},
)


async def main() -> None:
    async with ToolFleet() as fleet:
        tools = await fleet.tools(ada)
        offered = convert(tools, "anthropic")  # or openai_chat, openai_responses, gemini, mcp
        print("what the provider does not take:", offered.notes)
        for use in USES:
            result = await fleet.call(to_call(use, "anthropic", tools), ada)
            reply = from_result(result, "anthropic", str(use["id"]))  # goes into the next user message
            print(reply["tool_use_id"], reply.get("is_error"), reply["content"])


asyncio.run(main())

# It prints:
# what the provider does not take: ()
# t1 None {"wood":"Arden","owls":3}
# t2 True No tool owls__cuont; did you mean owls__count or owls__adopt or owls__watch?
# Nothing was executed: use a name from the list of tools, as it is written there.
