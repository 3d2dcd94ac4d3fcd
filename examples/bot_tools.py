"""A tool that a model calls by a tag: `TOOLFLEET_LOCAL_TOOLS=bot_tools:tools`."""

from toolfleet.tags import TagResult, ToolContext, ToolDef


async def research(context: ToolContext) -> TagResult:
    """Look for posts on the topic behind the tag."""
    return TagResult(success=True, message=f"Looking for {context.raw_arg}.")


tools = [
    ToolDef(
        name="research",
        description="Search for posts on a topic.",
        tag_prefix="RESEARCH",
        prompt_example="RESEARCH: [search query]",
        handler=research,
        cost="cheap",
        requires_gate=False,
        daily_limit=3,
    )
]
