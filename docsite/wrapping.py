"""Wraps Markdown at 120 characters, as `tests/house` demands of every page."""

import re
import textwrap
from collections.abc import Iterator

WIDTH = 120

_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")
_KEPT = re.compile(r"\s*(#|\||>|<!--|:::|--8<--)")
_SPACE = "\0"  # in place of a blank at which no line may end


def wrapped(text: str) -> str:
    """Return the text with its paragraphs and list items wrapped; tables, headings and code stay as they are."""
    return "\n".join(line for lines in _parts(text) for line in lines)


def _parts(text: str) -> Iterator[list[str]]:
    is_code, paragraph = False, list[str]()
    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        if is_code or is_fence or not line.strip() or _KEPT.match(line):
            yield _filled(paragraph)
            yield [line]
            paragraph, is_code = [], is_code != is_fence
        elif _ITEM.match(line):
            yield _filled(paragraph)
            paragraph = [line]
        else:
            paragraph.append(line)
    yield _filled(paragraph)


def _filled(lines: list[str]) -> list[str]:
    if all(len(line) <= WIDTH for line in lines):
        return lines
    item = _ITEM.match(lines[0])
    first = item[0] if item else ""
    words = " ".join([lines[0][len(first) :], *(line.strip() for line in lines[1:])])
    # No line may begin as a list or a heading does, and none ends within a short piece of code.
    words = re.sub(r" (?=([-+*#>]|\d+[.)])( |$))", _SPACE, words)
    words = re.sub(r"`[^`]{1,62}`", lambda code: code[0].replace(" ", _SPACE), words)
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return [line.replace(_SPACE, " ") for line in wrapper.wrap(words)]
