"""Defines tools that a model calls by a tag in its text: `RESEARCH: owls in winter` on a line of its own.

The definitions here apply in an agent: which tags there are, how a prompt tells of them. See `tags/parsing.py` for how
they are found in a text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field

from toolfleet_registry.contracts import CostClass, Message
from toolfleet_registry.contracts.names import LOCAL, ToolName
from toolfleet_registry.contracts.tool_context import ToolContext, by_name
from toolfleet_registry.errors import InvalidToolName
from toolfleet_registry.tags.handlers import Handler, handler_of
from toolfleet_registry.tags.patterns import TagPattern

__all__ = ["Tag", "TagResult", "Tags", "ToolContext", "ToolDef", "checked", "handler_in"]


class TagResult(Message):
    """The result of a tag's tool. Fields can be positional: `TagResult(True, "Found.")`."""

    success: bool
    """Whether it did what it was asked for."""
    message: str | None = None
    """What is to be sent to the chat; `None` for silence."""
    side_effects: list[str] = Field(default=[])
    """What was done, by names."""
    audit: dict[str, Any] = Field(default={})
    """In the result of `TagRegistry.execute` it has `duration_ms`, `tool`, `ts` and `call_id`, which are always the fleet's own words; what else a handler puts there stays."""

    if TYPE_CHECKING:

        def __init__(
            self,
            success: bool,  # noqa: FBT001 - in the order of its fields
            message: str | None = ...,
            side_effects: list[str] = ...,
            audit: dict[str, Any] = ...,
        ) -> None: ...

    else:

        def __init__(self, /, *given: Any, **fields: Any) -> None:
            super().__init__(**by_name(type(self), given, fields))


@dataclass(frozen=True, kw_only=True)
class ToolDef:
    """A tool that a model calls by `tag_prefix`. Checked when it is registered."""

    name: str
    """The tool's name; its function is the tool `local.<name>`."""
    description: str
    """What a model is told of the tool."""
    tag_prefix: str
    """What begins the tag's line, before its colon."""
    arg_pattern: str = r"(.+)"
    """A regular expression for what follows `PREFIX: ` up to a line's end."""
    arg_groups: Sequence[str] = field(default_factory=lambda: ["raw_arg"])
    """The names of its groups, in their order."""
    prompt_example: str = ""
    """How a prompt shows the tag; empty: made from its groups."""
    handler: str | Callable[..., Any]
    """A module's tool (`"module.method"`, called with the groups as its arguments), or a function, async or plain, as `"package.module:function"` or as itself: it runs in a worker that has this very tool in `TOOLFLEET_LOCAL_TOOLS`."""
    cost: CostClass
    """What a call costs, roughly: for budgets."""
    requires_gate: bool
    """Whether the agent's gate is asked before each call."""
    strip_from_display: bool = True
    """Whether a person does not see the tag."""
    cooldown_seconds: int = 0
    """The pause between two calls of one user; 0: none."""
    daily_limit: int = 0
    """How many calls one user has in a UTC day; 0: any number."""
    listed: bool = True
    """Whether `fleet.tools` and `fleet.search` show its function to models that call tools by name, too."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A tool that was found fit, with its pattern, ready to be looked for."""

    tool: ToolDef
    handler: Handler
    pattern: TagPattern


class Tags:
    """The tags of an agent. Registered at its start; looking them up afterwards changes nothing.

    `runs_here`: their functions run in this process, and may be any; else workers must find them.
    """

    def __init__(self, *, runs_here: bool = False) -> None:
        self._tags: dict[str, Tag] = {}
        self._runs_here = runs_here

    def register(self, tool: ToolDef) -> None:
        """Take a tool in. Raises `ValueError` if its name or prefix is taken, or if anything about it is wrong."""
        tag = checked(tool, is_here=self._runs_here)
        for other in self._tags.values():
            if other.tool.name == tool.name:
                raise ValueError(f"There is a tool named {tool.name!r} already.")
            if other.tool.tag_prefix.casefold() == tool.tag_prefix.casefold():
                raise ValueError(
                    f"Tool {tool.name!r}: the tag {tool.tag_prefix!r} is that of tool {other.tool.name!r} already."
                )
        self._tags = dict(sorted({**self._tags, tool.name: tag}.items()))

    def get(self, name: str) -> ToolDef | None:
        """The tool of this name."""
        tag = self._tags.get(name)
        return None if tag is None else tag.tool

    def all_tools(self) -> list[ToolDef]:
        """All tools, sorted by name."""
        return [tag.tool for tag in self._tags.values()]

    def tags(self) -> Mapping[str, Tag]:
        """The same, with what was found out about each at its registration."""
        return self._tags

    def prompt_block(self) -> str:
        """The part of a prompt that tells a model of its tags, empty if there are none. Holds no line that is a tag."""
        lines = [f"- `{_example(tool)}`: {' '.join(tool.description.split())}" for tool in self.all_tools()]
        return "\n".join([_INTRODUCTION, *lines]) if lines else ""


def checked(tool: ToolDef, *, is_here: bool = False) -> Tag:
    """Return the tool's tag, if it is valid. Raises `ValueError` with its name and what is wrong."""
    handler = handler_in(tool, is_here=is_here)
    try:
        return Tag(tool, handler, TagPattern.of(tool.tag_prefix, tool.arg_pattern, tuple(tool.arg_groups)))
    except ValueError as exc:
        raise ValueError(f"Tool {tool.name!r}: {exc}.") from exc


def handler_in(tool: ToolDef, *, is_here: bool = False) -> Handler:
    """Return the tool's handler, after checking all but the pattern, which only a search for tags needs.

    Raises as `checked` does.
    """
    try:
        _check_name(tool.name)
        _check_terms(tool)
        return handler_of(tool.handler, is_here=is_here)
    except ValueError as exc:
        raise ValueError(f"Tool {tool.name!r}: {exc}.") from exc


def _check_name(name: str) -> None:
    try:
        ToolName.parse(f"{LOCAL}.{name}")
    except InvalidToolName:
        raise ValueError("its name must be 1 to 192 characters without blanks") from None


def _check_terms(tool: ToolDef) -> None:
    if tool.cost not in get_args(CostClass):
        raise ValueError(f"its cost must be one of {', '.join(get_args(CostClass))}, not {tool.cost!r}")
    for what, value in (("cooldown_seconds", tool.cooldown_seconds), ("daily_limit", tool.daily_limit)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"its {what} must be 0 or more, not {value!r}")
    if not tool.listed and isinstance(tool.handler, str) and ":" not in tool.handler:
        raise ValueError(f"its handler {tool.handler!r} is a module's tool, which its module lists")


def _example(tool: ToolDef) -> str:
    if tool.prompt_example:
        return " ".join(tool.prompt_example.split())
    return f"{tool.tag_prefix}: " + " ".join(f"[{group}]" for group in tool.arg_groups)


_INTRODUCTION = (
    "You have these tools. To use one, write its tag at the start of a line of its own, outside of code blocks:"
)
