"""Runs tags without a fleet, in this process: for bots and tests without a broker."""

import asyncio

from toolfleet.tags import TagRegistry, TagResult, ToolContext, ToolDef, ToolRateLimited, parse_response


async def research(context: ToolContext) -> TagResult:
    return TagResult(success=True, message=f"Looking for {context.raw_arg}.")


RESEARCH = ToolDef(
    name="research",
    description="Search for posts on a topic.",
    tag_prefix="RESEARCH",
    prompt_example="RESEARCH: [search query]",
    handler=research,
    cost="cheap",
    requires_gate=False,
    daily_limit=1,
)


async def main() -> None:
    tags = TagRegistry()
    tags.register(RESEARCH)
    context = ToolContext(raw_arg="", user="@ada", user_message="what is new?")
    for call in parse_response("RESEARCH: owls\nRESEARCH: larks", tags, context=context).tool_calls:
        try:
            print((await tags.execute(call.name, call.context)).message)
        except ToolRateLimited as refused:
            print(str(refused).partition(" Try again")[0])


asyncio.run(main())

# It prints:
# Looking for owls.
# Tool call refused: its daily limit of 1 calls is reached.
