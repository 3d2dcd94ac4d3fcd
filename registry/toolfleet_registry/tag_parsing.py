"""Finding the tags in what a model wrote: which tools it calls, and what a person is to see of the text.

The work is bounded: `LONGEST_TEXT` characters are looked at, in `MOST_STEPS` at most, and `MOST_CALLS` are taken. What is
beyond stays in the text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from toolfleet_registry.tag_patterns import TagMatch, TagPattern
from toolfleet_registry.tags import Tag, Tags, ToolContext

LONGEST_TEXT = 100_000  # characters: more than a model writes at once that also calls a tool
MOST_CALLS = 64  # in one text
# Of an engine that takes one for each byte and each part of a pattern: some seconds, if a pattern is large and reads all of
# a long text for each of its matches. A usual one may be looked for some thousand times in a text of 4 kB.
MOST_STEPS = 500_000_000

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TagCall:
    """A tag that was found: the tool's name, what it is told, and the text of its line or lines."""

    name: str
    context: ToolContext
    text: str


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The calls in their order of appearance, and the text without the tags that nobody is to see.

    `is_cut`: a bound was reached, so that there may be further tags in the text.
    """

    tool_calls: list[TagCall] = field(default_factory=list)
    display_text: str = ""
    is_cut: bool = False


def parse_response(
    raw: str, registry: Tags, *, context: ToolContext | None = None, in_fences: bool = False
) -> ParsedResponse:
    """Find the tags: `PREFIX:`, space, and an argument up to a line's end, each at the start of a line.

    `context` is what the agent knows; each call gets it with its own argument. As in Markdown, what stands between two
    fences of a code block is quoted and no call, unless `in_fences`; a fence that nothing closes quotes nothing. A line
    ends with LF or CRLF. The space may hold line ends, but an argument never begins with the line of another tag.
    Where tags were taken away the text has no blank lines at its ends, nor two for one. Half surrogate pairs become "?".
    """
    text = raw.encode("utf-8", "replace").decode()
    written = _Written.of(text)
    search = _Search(written.lines, [tag.pattern for tag in registry.tags().values()], in_fences=in_fences)
    found = sorted(
        ((match, tag) for tag in registry.tags().values() for match in search.matches(tag.pattern)),
        key=lambda each: (each[0].start, each[1].tool.name),
    )
    taken = found[:MOST_CALLS]
    hidden = [(match.start, match.end) for match, tag in taken if tag.tool.strip_from_display]
    return ParsedResponse(
        [_call(match, tag, written.lines, context or ToolContext(raw_arg="")) for match, tag in taken],
        written.without(_whole_lines(hidden, written.lines)) if hidden else text,
        is_cut=bool(written.rest) or len(found) > MOST_CALLS or search.is_cut,
    )


def _call(match: TagMatch, tag: Tag, lines: bytes, context: ToolContext) -> TagCall:
    told = context.model_copy(update={"raw_arg": match.raw_arg, "groups": match.groups})
    return TagCall(tag.tool.name, told, lines[match.start : match.end].decode())


@dataclass(frozen=True, slots=True)
class _Written:
    """A text's start as it was written, in UTF-8; its `lines` with LF at their ends; and the rest, which is not looked at."""

    start: bytes
    lines: bytes
    rest: bytes
    _changed: Sequence[int]  # the line ends in `lines` that were CRLF

    @classmethod
    def of(cls, text: str) -> "_Written":
        end = len(text)
        if end > LONGEST_TEXT:  # a line that is cut through could have half an argument
            end = text.rfind("\n", 0, LONGEST_TEXT) + 1
        start = text[:end].encode()
        ends = [match.start() - count for count, match in enumerate(_CRLF.finditer(start))]
        return cls(start, start.replace(b"\r\n", b"\n"), text[end:].encode(), ends)

    def without(self, spans: Iterable[Span]) -> str:
        """The text without these spans of `lines`."""
        kept, position = bytearray(), 0
        for start, end in spans:
            kept += self.start[position : self._place(start)]
            position = self._place(end)
        kept += self.start[position:] + self.rest
        return kept.decode().strip("\r\n")

    def _place(self, position: int) -> int:
        return position + bisect_left(self._changed, position)


class _Search:
    """Looks for one tag after the other in the same lines."""

    def __init__(self, lines: bytes, patterns: Sequence[TagPattern], *, in_fences: bool) -> None:
        self._lines = lines
        self._share = MOST_STEPS // max(sum(pattern.prefix in lines for pattern in patterns), 1)
        # What no argument begins with, where it begins a line.
        self._starts = tuple(pattern.prefix for pattern in patterns) + (() if in_fences else (b"```", b"~~~"))
        self._fenced = [] if in_fences else list(_fenced(lines))
        self.is_cut = False

    def matches(self, pattern: TagPattern) -> Iterator[TagMatch]:
        """In order, until this tag's share of the steps is used up: the first search is everybody's."""
        position, steps = 0, self._share
        if pattern.prefix not in self._lines:
            return
        while steps > 0:
            steps -= pattern.size * (len(self._lines) - position)
            match = pattern.search(self._lines, position)
            if match is None:
                return
            fence_end = self._end_of_fence(match.start)
            if fence_end is not None:
                position = fence_end
            elif self._begins_a_tag(match.argument_start):
                position = match.argument_start
            else:
                yield match
                position = match.end
        self.is_cut = True

    def _begins_a_tag(self, position: int) -> bool:
        return self._lines[position - 1 : position] == b"\n" and self._lines.startswith(self._starts, position)

    def _end_of_fence(self, position: int) -> int | None:
        index = bisect_right(self._fenced, position, key=lambda span: span[0]) - 1
        return self._fenced[index][1] if index >= 0 and position < self._fenced[index][1] else None


def _fenced(lines: bytes) -> Iterator[Span]:
    """The code blocks that are opened and closed, fences and all."""
    opened: tuple[int, bytes] | None = None
    for match in _FENCE.finditer(lines):
        signs, info = match.group(1), match.group(2)
        if opened is None:
            if signs[:1] == b"~" or b"`" not in info:  # else it is code within a line
                opened = (match.start(), signs)
        elif signs.startswith(opened[1]) and not info.strip():
            yield opened[0], match.end()
            opened = None


def _whole_lines(spans: Iterable[Span], lines: bytes) -> Iterator[Span]:
    """The spans with their line ends, and with the blank lines after those that stand between two such."""
    position = 0
    for start, stop in sorted(spans):
        end = stop
        if lines[end : end + 1] == b"\n":
            end += 1
        if start == 0 or lines[start - 2 : start] == b"\n\n":
            while lines[end : end + 1] == b"\n":
                end += 1
        yield max(start, position), max(end, position)
        position = max(end, position)


_CRLF = re.compile(rb"\r\n")
_FENCE = re.compile(rb"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
