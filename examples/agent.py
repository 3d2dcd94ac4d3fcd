"""An agent's turn with a scripted model: offers tools, runs what the model wants, and gives it the results.

`toolfleet up --module examples/larks` first; then `python examples/agent.py`.
"""

import asyncio
from typing import Any

from toolfleet import Caller, ToolFleet
from toolfleet.formats import convert, from_result, to_call

ada = Caller(user_id="ada", permission="user")


async def model(messages: list[Any], tools: list[Any]) -> list[dict[str, Any]]:
    """Answer as Anthropic's API would: two tool uses first, of which one is wrong, then a text."""
    if len(messages) > 1:
        return [{"type": "text", "text": "There are 6 larks at Oxmoor. I know no way to count owls."}]
    count = next(tool["name"] for tool in tools if "Count the larks" in tool["description"])
    return [
        {"type": "tool_use", "id": "t1", "name": count, "input": {"meadow": "Oxmoor"}},
        {"type": "tool_use", "id": "t2", "name": "larks__owls", "input": {}},
    ]


async def main() -> None:
    """Go on until the model wants no tool any more."""
    messages: list[Any] = [{"role": "user", "content": "How many larks and owls are at Oxmoor?"}]
    async with ToolFleet() as fleet:
        tools = await fleet.tools(ada)
        offered = convert(tools, "anthropic")
        while uses := [block for block in await model(messages, [*offered]) if block["type"] == "tool_use"]:
            results = await fleet.call_many([to_call(use, "anthropic", tools) for use in uses], ada)
            replies = [from_result(result, "anthropic", use["id"]) for use, result in zip(uses, results, strict=True)]
            messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": replies}]
    print((await model(messages, []))[0]["text"])


asyncio.run(main())
