"""Functions that the fleet's workers run as the tools `local.…`, without a service of their own."""

from toolfleet.tags import TagResult, ToolContext, ToolDef, local_tool


@local_tool(permission="guest", effect="read")
async def find_owls(wood: str, most: int = 2) -> list[str]:
    """Find owls in a wood.

    Args:
        wood: Its name.
        most: How many to name at most.
    """
    return [f"{kind} owl of {wood}" for kind in ("tawny", "snowy", "eagle")][:most]


async def remember(context: ToolContext) -> TagResult:
    """Remember what a model has written behind its tag."""
    return TagResult(success=True, message=f"Noted for {context.user}: {context.raw_arg}")


tools = [
    find_owls,
    ToolDef(
        name="remember",
        description="Remember a fact.",
        tag_prefix="REMEMBER",
        prompt_example="REMEMBER: [a fact]",
        handler=remember,
        cost="free",
        requires_gate=False,
    ),
]
