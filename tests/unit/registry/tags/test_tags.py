"""The tags of an agent: what is taken in, and what a prompt tells of them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from support.local_tools import tag_tools
from support.local_tools.tag_tools import learning_tag, research_tag, tag
from toolfleet_registry.tags import Tags, ToolContext, ToolDef


def test_a_tool_has_the_defaults_of_one_group_and_no_limits() -> None:
    """Name, description, tag, handler, cost and gate are always said; all else has a default."""
    tool = ToolDef(
        name="research", description="…", tag_prefix="RESEARCH", handler="x.y", cost="cheap", requires_gate=False
    )

    assert (tool.arg_pattern, tool.arg_groups, tool.prompt_example) == (r"(.+)", ["raw_arg"], "")
    assert tool.strip_from_display
    assert (tool.cooldown_seconds, tool.daily_limit) == (0, 0)


def test_tools_are_found_by_name_and_listed_in_its_order() -> None:
    """Whatever the order of their registration."""
    tags = Tags()
    for tool in (research_tag, learning_tag):
        tags.register(tool)

    assert tags.all_tools() == [learning_tag, research_tag]
    assert tags.get("research") is research_tag
    assert tags.get("nowhere") is None


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (tag("research", tag_prefix="OTHER"), "There is a tool named 'research' already."),
        (tag("other", tag_prefix="RESEARCH"), "Tool 'other': the tag 'RESEARCH' is that of tool 'research' already."),
        (tag("other", tag_prefix="Research"), "Tool 'other': the tag 'Research' is that of tool 'research' already."),
    ],
)
def test_a_name_or_a_tag_that_is_taken_is_an_error(tool: ToolDef, reason: str) -> None:
    """Also one that a model could take for another's; and the registry stays as it was."""
    tags = Tags()
    tags.register(research_tag)

    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        tags.register(tool)
    assert tags.all_tools() == [research_tag]


def _closure() -> Callable[..., Any]:
    async def nested(context: ToolContext) -> None:
        """Is not to be found from outside."""

    return nested


class _Tools:
    async def method(self, context: ToolContext) -> None:
        """Needs its object."""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "two words"}, "its name must be"),
        ({"name": ""}, "its name must be"),
        ({"cost": "dear"}, "its cost must be one of free, cheap, expensive, not 'dear'"),
        ({"cooldown_seconds": -1}, "its cooldown_seconds must be 0 or more"),
        ({"daily_limit": -1}, "its daily_limit must be 0 or more"),
        ({"tag_prefix": ""}, "its tag '' must be"),
        ({"tag_prefix": "TWO WORDS"}, "its tag 'TWO WORDS' must be"),
        ({"tag_prefix": "A|B"}, "its tag"),
        ({"tag_prefix": "RESEARCH\n"}, "its tag"),
        ({"arg_pattern": "("}, "its pattern is no regular expression"),
        ({"arg_pattern": "a)|(b"}, "its pattern is no regular expression"),  # no pattern by itself
        ({"arg_pattern": "(.+)(?=x)"}, "linear time"),
        ({"arg_pattern": r"(.)\1"}, "linear time"),
        ({"arg_pattern": "((?:a{1,500}){1,500})"}, "linear time"),
        ({"arg_pattern": "((?>a+)b)"}, "linear time"),
        ({"arg_pattern": "(a" + "b" * 1000 + ")"}, "more than 1000 characters"),
        ({"arg_pattern": "(.)(.)"}, "its pattern has 2 groups, and 1 names for them"),
        ({"arg_pattern": "(.)(.)", "arg_groups": ["a", "a"]}, "two of its groups have the same name"),
        ({"arg_groups": ["no name"]}, "its group 'no name' must be a name"),
        ({"handler": "research"}, "neither a module's tool"),
        ({"handler": "bot.tools:Class.method"}, "no import path"),
        ({"handler": "bot.tools:<lambda>"}, "no import path"),
        ({"handler": lambda context: None}, "cannot travel to a worker"),
        ({"handler": tag_tools.yielding}, "'yielding' yields; a tool returns one result"),
        ({"handler": ToolDef}, "its handler 'ToolDef' is no function"),
        ({"handler": _closure()}, "cannot travel to a worker"),
        ({"handler": _Tools().method}, "cannot travel to a worker"),
        ({"handler": _Tools()}, "is no function"),
    ],
)
def test_what_could_never_work_is_refused_at_registration(fields: dict[str, Any], reason: str) -> None:
    """With one sentence that names the tool and what is wrong."""
    tool = tag(**{"name": "owl", **fields})

    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        Tags().register(tool)
    assert str(caught.value).startswith(f"Tool {tool.name!r}: ")
    assert str(caught.value).endswith(".")


def test_a_handler_of_the_started_program_is_refused() -> None:
    """No worker can import it: its module is called `__main__` there, too, and is another."""

    async def handler(context: ToolContext) -> None: ...

    handler.__module__, handler.__qualname__ = "__main__", "handler"
    with pytest.raises(ValueError, match="put it into a module of its own"):
        Tags().register(tag("owl", handler=handler))


def test_a_prompt_names_each_tag_and_what_it_does() -> None:
    """In the order of names; where nobody wrote an example, the groups make one. No tools, no words."""
    tags = Tags()
    assert tags.prompt_block() == ""

    tags.register(tag("source", description="Archives\n  a source."))
    tags.register(learning_tag)

    assert tags.prompt_block().splitlines()[1:] == [
        "- `LEARNING: [category] [what was learned]`: What learning does.",
        "- `SOURCE: [raw_arg]`: Archives a source.",
    ]


def test_half_a_character_in_a_context_does_not_stop_a_call() -> None:
    """Programs that cut strings by length make them, and no JSON can carry them."""
    assert (
        ToolContext(raw_arg="a\ud83e", user_message="b\udd89").model_dump_json(include={"raw_arg"})
        == '{"raw_arg":"a?"}'
    )
