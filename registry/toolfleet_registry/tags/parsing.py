"""Finds the tags in a model's text: which tools it calls, and which part of the text a person sees.

The work is bounded: `LONGEST_TEXT` characters are searched, in at most `MOST_STEPS` for all tags together, and
`MOST_CALLS` are taken. The rest stays in the text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from toolfleet_registry.tags.tags import Tag, TagMatch, Tags, ToolContext

LONGEST_TEXT = 100_000  # characters: more than a model writes at once that also calls a tool
MOST_CALLS = 64  # in one text
# Of an engine that takes one for each byte and each part of a pattern, 6 ns at most: 0.2 s. One that stays in its line may
# be looked at some ten thousand times; one of 60 parts that may go on to the text's end, a hundred times in 4 kB.
MOST_STEPS = 30_000_000

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TagCall:
    """A tag that was found."""

    name: str
    """The tool's name."""
    context: ToolContext
    """What the tool is told."""
    text: str
    """The text of the tag's line or lines."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The tags found in a model's text, and its remainder."""

    tool_calls: list[TagCall] = field(default_factory=list)
    """The calls, in the order of their tags."""
    display_text: str = ""
    """The text without the tags that nobody is to see."""
    is_cut: bool = False
    """Whether a bound was reached, so that there may be further tags in the text."""


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
    search = _Search(written.lines, registry.tags().values(), in_fences=in_fences)
    found = list(islice(search.matches(), MOST_CALLS + 1))
    taken = found[:MOST_CALLS]
    hidden = [(match.start, match.end) for match, tag in taken if tag.tool.strip_from_display]
    return ParsedResponse(
        [_call(match, tag, written.lines, context or ToolContext(raw_arg="")) for match, tag in taken],
        written.without(_whole_lines(hidden, written.lines)) if hidden else text,
        is_cut=bool(written.rest) or len(found) > MOST_CALLS or search.is_cut,
    )


def _call(match: TagMatch, tag: Tag, lines: bytes, context: ToolContext) -> TagCall:
    match_context = context.model_copy(update={"raw_arg": match.raw_arg, "groups": match.groups})
    return TagCall(tag.tool.name, match_context, lines[match.start : match.end].decode())


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
    """A search over each line that begins as a tag does, in the text's order."""

    def __init__(self, lines: bytes, tags: Iterable[Tag], *, in_fences: bool) -> None:
        self._lines = lines
        self._tags = {tag.pattern.prefix: tag for tag in tags}
        # What no argument begins with, where it begins a line.
        self._starts = tuple(self._tags) + (() if in_fences else (b"```", b"~~~"))
        self._fenced = [] if in_fences else list(_fenced(lines))
        self.is_cut = False

    def matches(self) -> Iterator[tuple[TagMatch, Tag]]:
        """Yield matches until the next one could take more steps than are left: then the first one is taken, and the rest cut."""
        rest, after = MOST_STEPS, dict.fromkeys(self._tags, 0)
        for line in _PREFIX.finditer(self._lines):
            prefix, start = line.group(), line.start()
            tag = self._tags.get(prefix)
            if tag is None or start < after[prefix] or self._is_fenced(start):
                continue
            end = tag.pattern.reads_to(self._lines, start)
            rest -= _STEPS_OF_ANY + tag.pattern.steps * (end - start)
            if rest < 0:
                self.is_cut = True
                return
            match = tag.pattern.match(self._lines, start, end)
            if match is not None and not self._begins_a_tag(match.argument_start):
                after[prefix] = match.end
                yield match, tag

    def _begins_a_tag(self, position: int) -> bool:
        return self._lines[position - 1 : position] == b"\n" and self._lines.startswith(self._starts, position)

    def _is_fenced(self, position: int) -> bool:
        index = bisect_right(self._fenced, position, key=lambda span: span[0]) - 1
        return index >= 0 and position < self._fenced[index][1]


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


_STEPS_OF_ANY = 1_000  # to look at a line at all
_PREFIX = re.compile(rb"^[A-Za-z][A-Za-z0-9_-]{0,63}:", re.MULTILINE)
_CRLF = re.compile(rb"\r\n")
_FENCE = re.compile(rb"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
