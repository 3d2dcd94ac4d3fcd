"""Tools with tags, and functions that run in a worker: what `TOOLFLEET_LOCAL_TOOLS` names in tests."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

from toolfleet.tags import TagResult, ToolContext, ToolDef, local_tool


def tag(name: str, **fields: Any) -> ToolDef:
    """A tool of a module of tests, with its name as its tag; `fields` replace its own."""
    defaults: dict[str, Any] = {
        "name": name,
        "description": f"What {name} does.",
        "tag_prefix": name.upper(),
        "handler": "owls.echo",
        "cost": "free",
        "requires_gate": False,
    }
    return ToolDef(**{**defaults, **fields})


async def research(context: ToolContext) -> TagResult:
    return TagResult(
        success=True,
        message=f"{context.user} wants {context.raw_arg}",
        side_effects=[f"searched:x:{context.raw_arg}"],
        audit={"posts": 3, "duration_ms": "mine", "tool": "mine", "ts": "mine"},
    )


async def learning(category: str, content: str) -> str:
    return f"{category}: {content}"


async def refuse(context: ToolContext) -> TagResult:
    return TagResult(success=False, message="No such owl.", audit={"looked": True})


async def explode(context: ToolContext) -> None:
    raise ValueError(f"secret words about {context.raw_arg}")


@local_tool(effect="read", timeout_seconds=2)
async def nap(seconds: float, *, mood: Literal["deep", "light"] = "light") -> str:
    """Sleeps for so long."""
    await asyncio.sleep(seconds)
    return mood


def yielding(context: ToolContext) -> Iterator[str]:
    """Has no one result."""
    yield context.raw_arg


research_tag = tag("research", handler=research, cost="cheap", daily_limit=3)
learning_tag = tag(
    "learning",
    arg_pattern=r"(factual|communication|structured_data)\s+(.+)",
    arg_groups=["category", "content"],
    prompt_example="LEARNING: [category] [what was learned]",
    handler="support.local_tools.tag_tools:learning",
)
refuse_tag = tag("refuse", handler=refuse)
explode_tag = tag("explode", handler=explode)
echo_tag = tag("echo", arg_groups=["text"], daily_limit=2)

tools = [research_tag, learning_tag, refuse_tag, explode_tag, echo_tag, nap]
no_list = "research"
twice = [research_tag, research]
with_yielding = [tag("yielding", handler="support.local_tools.tag_tools:yielding")]
with_missing = [tag("missing", handler="support.local_tools.tag_tools:nowhere")]
with_other_groups = [tag("other", handler="support.local_tools.tag_tools:learning")]
