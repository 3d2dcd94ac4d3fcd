"""Translates tool names for a provider, and back."""

import difflib
import hashlib
import re
from collections.abc import Iterable

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.names import ToolName, provider_name
from toolfleet_registry.contracts.tool_definition import by_any_name
from toolfleet_registry.errors import InvalidToolName
from toolfleet_registry.formats.dialects import Format, dialect_of


def offered_name(name: str, format: Format, *, dotted: bool = False) -> str:  # noqa: A002 - the face's word
    """Return a name that the provider accepts; no two tools share one.

    With `dotted`, and where the provider takes dots, it is our own name if that is legal there; otherwise the one that
    `names.provider_name` makes, which never has a dot.
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
    """Return the tool that was offered under this name, or a former one, dotted or not; `None` if none was, or two were.

    Two were offered under one name if the digests at the ends of theirs are the same.
    """
    by_name = by_any_name({tool.name: tool for tool in tools}, lambda tool: tool)
    if spoken in by_name:
        return by_name[spoken]
    dotted = spoken.replace("__", ".")
    if dotted in by_name and provider_name(dotted) == spoken:  # without a digest it is no other's
        return by_name[dotted]
    found = {tool.name: tool for name, tool in by_name.items() if provider_name(name) == spoken}
    return next(iter(found.values())) if len(found) == 1 else None


def near_names(
    spoken: str,
    tools: Iterable[ToolDefinition],
    format: Format,  # noqa: A002 - as above
    *,
    dotted: bool = False,
) -> tuple[str, ...]:
    """Return up to three offered names that are most similar to one that was not offered."""
    if len(spoken) > _LONGEST_COMPARED:
        return ()
    meant, start = _plain(spoken), spoken[:_ALIKE]
    # Those that begin alike are compared first.
    compared = sorted(tools, key=lambda tool: not tool.name.startswith(start))[:_MOST_COMPARED]
    whole = {_plain(tool.name): tool for tool in compared}
    methods = {_plain(tool.name.partition(".")[2]): tool for tool in compared}  # the module is easily forgotten
    found = [meant] if meant in whole else difflib.get_close_matches(meant, whole)
    near = [whole[each] for each in found] or [methods[each] for each in difflib.get_close_matches(meant, methods)]
    return tuple(offered_name(tool.name, format, dotted=dotted) for tool in near)


def _plain(name: str) -> str:
    """The name without what models mix up."""
    return name.replace("__", "_").replace(".", "_").lower()


def legal_property(name: str, legal: re.Pattern[str]) -> str:
    """A property's name as a provider takes it: itself if it may be, else its readable start and a digest."""
    if legal.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"p_{_ILLEGAL.sub('_', name)[:_READABLE]}_x{digest}"


_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_MOST_COMPARED = 200  # names; comparing two takes some 20 µs, and the event loop waits
_LONGEST_COMPARED = 128  # characters; the time grows with their square
_ALIKE = 3  # characters
_DIGEST = 10
_READABLE = 40
