"""Checks selectors, which name tools by name, by pattern or by tag, and decides whether they select a tool.

`git.status` is a tool, `git.*` all of a module, `tag:reading` each that has this tag; `!` before any of them takes out what it
selects. A tool is selected if one selects it and none takes it out; with nothing but such that take out, all others are.
"""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, Field

from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.errors import InvalidToolName

MOST_SELECTORS = 500
"""In one list."""

_TAG, _NOT = "tag:", "!"
_FORM = re.compile(r"!?(tag:[^\s,!][^\s,]{0,127}|[A-Za-z0-9_.*?-]{1,256})")


def _checked(selector: str) -> str:
    if not _FORM.fullmatch(selector):
        raise ValueError(
            f"{selector[:80]!r} selects no tools: write a name (git.status), a pattern (git.*) or tag:NAME, each perhaps after '!'"
        )
    return selector


Selector = Annotated[str, AfterValidator(_checked), Field(json_schema_extra={"pattern": f"^{_FORM.pattern}$"})]
"""One of them."""

Selectors = Annotated[tuple[Selector, ...], Field(max_length=MOST_SELECTORS)]
"""A list of them, in no order."""


def never_selects(selector: str) -> str | None:
    """Return why a selector can never select a tool, or `None` if it can."""
    name = selector.removeprefix(_NOT)
    if name.startswith(_TAG) or not {"*", "?"}.isdisjoint(name):
        return None
    try:
        ToolName.parse(name)
    except InvalidToolName:
        return f"{selector!r} can select no tool: a tool's name is MODULE.TOOL, as in git.status"
    return None


def selects(selectors: Sequence[str], names: Collection[str], tags: Collection[str]) -> bool:
    """Return whether these select the tool, by any of its names; an empty list selects none."""
    is_selected = bool(selectors) and all(selector.startswith(_NOT) for selector in selectors)
    for selector in selectors:
        if selector.startswith(_NOT):
            if _matches(selector[1:], names, tags):
                return False
        elif not is_selected:
            is_selected = _matches(selector, names, tags)
    return is_selected


def _matches(selector: str, names: Collection[str], tags: Collection[str]) -> bool:
    if selector.startswith(_TAG):
        return selector.removeprefix(_TAG) in tags
    return any(fnmatchcase(name, selector) for name in names)
