"""Reads a tool's description from its function's docstring, in Google's style.

What stands before the first section is the tool's description. `Args:` (or `Arguments:`, `Parameters:`) describes
parameters, one `name: text` or `name (type): text` each, indented; longer texts go on in lines that are indented further.
Other sections (`Returns:`, `Raises:`, `Examples:` …) are for readers of the code and are left out.
"""

import inspect
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DocstringWords:
    """The tool's description, and those of the parameters that have one. Lines within a paragraph are joined."""

    description: str
    parameters: Mapping[str, str]


def words_of(docstring: str | None) -> DocstringWords:
    """Read a docstring; without one, there are no words."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    heads = [number for number, line in enumerate(lines) if _SECTION.fullmatch(line)]
    parameters: dict[str, str] = {}
    for start, end in itertools.pairwise([*heads, len(lines)]):
        if lines[start].strip(":") in _ABOUT_PARAMETERS:
            parameters |= _parameters(lines[start + 1 : end])
    return DocstringWords(_paragraphs(lines[: heads[0]] if heads else lines), parameters)


def _parameters(lines: list[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    depth = min((_indent(line) for line in lines if line.strip()), default=0)
    name: str | None = None
    for line in lines:
        begun = _PARAMETER.fullmatch(line.strip()) if line.strip() and _indent(line) == depth else None
        if begun:
            name = str(begun["name"])
            texts[name] = [str(begun["text"])]
        elif name is not None:
            texts[name].append(line.strip())
    return {name: " ".join(filter(None, text)) for name, text in texts.items()}


def _paragraphs(lines: list[str]) -> str:
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(block if _KEPT.search(block) else " ".join(block.split()) for block in blocks)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_ABOUT_PARAMETERS = frozenset({"Args", "Arguments", "Parameters"})
_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|Warns?|Warnings?|See Also|Todo"
    r"|References):"
)
_PARAMETER = re.compile(r"\**(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")
_KEPT = re.compile(
    r"^(\s|[-*+] |\d+[.)] |```|\|)", re.MULTILINE
)  # lists, tables and code lose their meaning in one line
