"""Tag tools that say what they were told: what `TOOLFLEET_LOCAL_TOOLS` names in tests of the context."""

from typing import Any

from support.local_tools.tag_tools import tag
from toolfleet.tags import TagResult, ToolContext


async def told(ctx: ToolContext) -> TagResult:
    return TagResult(True, ctx.model_dump_json())


async def bare(ctx) -> TagResult:  # type: ignore[no-untyped-def] # noqa: ANN001 - as people write it
    return TagResult(True, ctx.model_dump_json())


async def beside(category: str, content: str, where: "ToolContext | None" = None) -> str:
    return f"{category}/{content}/{where.chat_id if where else None}"


_PAIR: dict[str, Any] = {"arg_pattern": r"(\w+)\s+(.+)", "arg_groups": ["category", "content"]}

told_tag = tag("told", handler=told)
bare_tag = tag("bare", handler=bare, **_PAIR)
beside_tag = tag("beside", handler=beside, **_PAIR)
hidden_tag = tag("hidden", handler=told, listed=False, daily_limit=3)

tools = [told_tag, bare_tag, beside_tag, hidden_tag]
