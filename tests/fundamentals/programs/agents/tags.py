"""Has a model call tools by tags in its text: people see the rest of what it writes."""

import asyncio

from toolfleet import ToolFleet
from toolfleet.tags import TagRegistry, ToolContext, ToolDef, parse_response

COUNT = ToolDef(
    name="count",
    description="Count the owls of a wood.",
    tag_prefix="COUNT",
    arg_groups=["wood"],
    prompt_example="COUNT: [wood]",
    handler="owls.count",
    cost="free",
    requires_gate=False,
)
WRITTEN = "I shall count them.\nCOUNT: Arden"


async def main() -> None:
    async with ToolFleet() as fleet:
        tags = TagRegistry(fleet)
        tags.register(COUNT)
        print("COUNT: [wood]" in tags.prompt_block())  # what a model is told
        around = ToolContext(raw_arg="", user="@ada", user_message="How many owls are in Arden?")
        parsed = parse_response(WRITTEN, tags, context=around)
        print(parsed.display_text)
        for call in parsed.tool_calls:
            print((await tags.execute(call.name, call.context)).message)


asyncio.run(main())

# It prints:
# True
# I shall count them.
# {"wood": "Arden", "owls": 3}
