"""Under which name a provider is offered a tool, and which tool it means by one."""

import hashlib
import re
from collections.abc import Iterable

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.errors import InvalidToolName
from toolfleet_registry.formats.dialects import Format, dialect_of
from toolfleet_registry.names import ToolName, provider_name


def offered_name(name: str, format: Format, *, dotted: bool = False) -> str:  # noqa: A002 - the face's word
    """A name that the provider accepts; no two tools share one.

    With `dotted`, and where the provider takes dots, our own name if it is legal there; else as
    `names.provider_name` makes it, whose names never have a dot.
    """
    legal = dialect_of(format).dotted_name if dotted else None
    return name if legal is not None and "." in name and legal.fullmatch(name) else provider_name(name)


def answered_name(name: str, format: Format, *, dotted: bool = False) -> str:  # noqa: A002 - the face's word
    """The name that a result goes back under: as offered; of a tool that does not exist, as the model spoke it."""
    try:
        ToolName.parse(name)
    except InvalidToolName:
        return name if _LEGAL.fullmatch(name) else provider_name(name)
    return offered_name(name, format, dotted=dotted)


def meant_tool(spoken: str, tools: Iterable[ToolDefinition]) -> ToolDefinition | None:
    """The tool that was offered under this name, dotted or not; `None` if none was."""
    by_name = {tool.name: tool for tool in tools}
    if spoken in by_name:
        return by_name[spoken]
    return next((tool for name, tool in by_name.items() if provider_name(name) == spoken), None)


def legal_property(name: str, legal: re.Pattern[str]) -> str:
    """A property's name as a provider takes it: itself if it may be, else its readable start and a digest."""
    if legal.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"p_{_ILLEGAL.sub('_', name)[:_READABLE]}_x{digest}"


_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_DIGEST = 10
_READABLE = 40
