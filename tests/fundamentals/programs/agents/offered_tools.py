"""Offers tools to a model as OpenAI's Chat Completions take them, and runs what the model has chosen."""

import asyncio

from toolfleet import Caller, ToolFleet
from toolfleet.formats import call_from_openai

ada = Caller(user_id="ada", permission="user", allowed_modules=frozenset({"owls"}))
# What a model has answered:
CHOSEN = {"id": "call_1", "type": "function", "function": {"name": "owls__count", "arguments": '{"wood": "Arden"}'}}


async def main() -> None:
    async with ToolFleet() as fleet:
        tools = await fleet.tools(ada)
        offered = fleet.tools_to_openai_format(tools)  # tools=offered
        print(offered[3]["function"]["name"], "|", offered[3]["function"]["description"])
        result = await fleet.call(call_from_openai(CHOSEN, tools), ada)
        print(result.tool_name, result.result)


asyncio.run(main())

# It prints:
# owls__count | Count the owls of a wood.
# owls.count {'wood': 'Arden', 'owls': 3}
