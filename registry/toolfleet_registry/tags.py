r"""Defines tools that a model calls by a tag in its text, `RESEARCH: owls in winter` on a line of its own, and finds the tags.

The syntax that both understand is accepted, and has Python's meaning, but for `\b` and `\B`, which know ASCII letters
only. Look-arounds, back references and everything else that needs backtracking is refused, as are patterns that take
too many steps.

The work of the search is bounded: `LONGEST_TEXT` characters are searched, in at most `MOST_TEXT_STEPS` for all tags together, and
`MOST_CALLS` are taken. The rest stays in the text.
"""

import inspect
import re
import sys
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import Field

from toolfleet_registry.contracts import CostClass, Message
from toolfleet_registry.contracts.call_context import ToolContext, by_name
from toolfleet_registry.contracts.limits import LIMITS
from toolfleet_registry.contracts.names import LOCAL, ToolName
from toolfleet_registry.errors import InvalidToolName
from toolfleet_registry.linear_patterns import compiled

LONGEST_PATTERN = 1000  # characters
MOST_STEPS = 1000  # for each byte of a text: `(.{1,300})` has almost as many, `(.+)` has 20

# Python's, for text. Only for the opposite of `\w` there is no short way to write it within brackets.
_CLASSES = {
    "s": r"\s\v\x1c-\x1f\x{85}\p{Z}",
    "w": r"\p{L}\p{N}_",
    "d": r"\p{Nd}",
    "D": r"\P{Nd}",
    "S": "\x00-\x08\x0e-\x1b!-\x84\x86-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\U0010ffff",
}
_ASCII = {"s": r"\s", "w": "0-9A-Z_a-z", "d": "0-9", "D": "!-/", "S": "!-~"}
_SPACE = f"[{_CLASSES['s']}]"
_BLANKS = re.compile(  # the same in UTF-8
    rb"(?:[\s\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*"
)
_FAR = re.compile(r"\\x\{[^}]*\}")
# What may be a line's end, or is not worth to be looked at more closely.
_LINE_END = re.compile(r"[\x00-\x1f]|\[\^|\(\?[a-zA-Z]*s|\\[^wdSbB!-/:-@\[-`{-~]", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_TOKEN = re.compile(
    r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|\[\^?|\{,\d*\}|\(\?[a-zA-Z]*-|.", re.DOTALL
)

__all__ = ["Tag", "TagResult", "Tags", "ToolContext", "ToolDef", "checked", "handler_in"]

_INTRODUCTION = (
    "You have these tools. To use one, write its tag at the start of a line of its own, outside of code blocks:"
)

LONGEST_TEXT = 100_000  # characters: more than a model writes at once that also calls a tool
MOST_CALLS = 64  # in one text
# Of an engine that takes one for each byte and each part of a pattern, 6 ns at most: 0.2 s. One that stays in its line may
# be looked at some ten thousand times; one of 60 parts that may go on to the text's end, a hundred times in 4 kB.
MOST_TEXT_STEPS = 30_000_000

Span = tuple[int, int]

_STEPS_OF_ANY = 1_000  # to look at a line at all
_TAG_START = re.compile(rb"^[A-Za-z][A-Za-z0-9_-]{0,63}:", re.MULTILINE)
_CRLF = re.compile(rb"\r\n")
_FENCE = re.compile(rb"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TagMatch:
    """The place of a tag, in bytes of UTF-8: its line or lines, where its argument begins; and the text of its groups."""

    start: int
    argument_start: int
    end: int
    raw_arg: str
    groups: dict[str, str]


@dataclass(frozen=True, slots=True)
class TagPattern:
    r"""`^PREFIX:\s+<arg_pattern>$`, where `^` and `$` are a line's start and end."""

    prefix: bytes
    groups: tuple[str, ...]
    steps: int
    """For each byte that is read, at most: some 6 ns for each of them."""
    _stays_in_line: bool
    _regexp: Any
    _has_groups: bool

    @classmethod
    def of(cls, prefix: str, arg_pattern: str, groups: tuple[str, ...]) -> Self:
        """Read it. Raises `ValueError` with a reason that goes on after a tool's name."""
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f"its tag {prefix!r} must be 1 to 64 ASCII letters, digits, '_' and '-', and begin with a letter"
            )
        for name in groups:
            if not name or not name.isprintable() or " " in name:
                raise ValueError(f"its group {name!r} must be a name, as an argument has one")
        if len(set(groups)) != len(groups):
            raise ValueError("two of its groups have the same name")
        count = _count_groups(arg_pattern)
        if count != len(groups) and (count, len(groups)) != (0, 1):
            raise ValueError(f"its pattern has {count} groups, and {len(groups)} names for them")
        regexp = compiled(_line_of(prefix, _translated(arg_pattern)).encode(), extra="tags")
        steps = _steps(prefix, arg_pattern) or int(regexp.programsize)
        if steps > MOST_STEPS:
            raise ValueError(
                f"its pattern is too large: it takes {steps} steps for each character, of which {MOST_STEPS} may be"
            )
        return cls(f"{prefix}:".encode(), groups, steps, not _LINE_END.search(arg_pattern), regexp, bool(count))

    def reads_to(self, data: bytes, position: int) -> int:
        """Return the last position that `match` may read: the end of the argument's line, or of all for a pattern that may go on."""
        if not self._stays_in_line:
            return len(data)
        blanks = _BLANKS.match(data, position + len(self.prefix))
        end = data.find(b"\n", blanks.end() if blanks else position)
        return len(data) if end < 0 else end

    def match(self, data: bytes, position: int, end: int) -> TagMatch | None:
        """Return the tag of the line that begins at `position`, if there is one. `end` is that of `reads_to`."""
        match = self._regexp.match(data, position, end)
        if match is None:
            return None
        raw_arg = _text(match.group(1))
        texts = (
            [_text(match.group(number)) for number in range(2, len(self.groups) + 2)] if self._has_groups else [raw_arg]
        )
        groups = dict(zip(self.groups, texts, strict=False))
        return TagMatch(match.start(), match.start(1), match.end(), groups.get("raw_arg", raw_arg), groups)


def _count_groups(arg_pattern: str) -> int:
    """Have Python compile the pattern alone: an invalid pattern must not become valid between our own parts."""
    if len(arg_pattern) > LONGEST_PATTERN:
        raise ValueError(f"its pattern has more than {LONGEST_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python warns of it will read in another way one day
            return re.compile(arg_pattern, re.MULTILINE).groups
    except (re.error, Warning, OverflowError, RecursionError) as exc:
        raise ValueError(f"its pattern is no regular expression: {exc}") from exc


def _line_of(prefix: str, translated: str) -> str:
    return f"(?m)^{prefix}:{_SPACE}+({translated})$"


def _steps(prefix: str, arg_pattern: str) -> int | None:
    """Return the steps of the same pattern with bytes as characters; `None` if it is invalid there.

    The classes of all languages make a program ten to hundred times as large, of which each byte meets a small part.
    """
    narrow = _FAR.sub("x", _translated(arg_pattern, _ASCII))
    try:
        return int(compiled(f"(?m)^{prefix}: +({narrow})$".encode(), extra="tags", is_latin=True).programsize)
    except ValueError:
        return None


def _translated(pattern: str, classes: Mapping[str, str] | None = None) -> str:
    """Translate a pattern for RE2: Python's own syntax, and the classes, which include all letters in Python."""
    return "".join(_pieces(pattern, _CLASSES if classes is None else classes))


def _pieces(pattern: str, classes: Mapping[str, str]) -> Iterator[str]:
    position, in_class = 0, False
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:  # every character is a token
            raise AssertionError(pattern)
        text, position = token.group(), token.end()
        if text.startswith("\\"):
            yield _escape(text, classes, in_class=in_class)
        elif in_class:
            in_class = text != "]"
            yield "\\[" if text == "[" else text
        elif text in {"[", "[^"}:
            in_class = True
            yield text
            if pattern.startswith("]", position):  # the first is no end
                position += 1
                yield "\\]"
        elif text.startswith("{,"):
            yield "{0" + text[1:]
        elif text.startswith("(?"):
            raise ValueError(f"its pattern has {text!r}: no flag may be switched off in it")
        else:
            yield text


def _escape(text: str, classes: Mapping[str, str], *, in_class: bool) -> str:
    kind = text[1]
    if kind == "W" and in_class:
        raise ValueError(f"its pattern has {text} inside of brackets; write it without")
    if kind in "123456789":
        raise ValueError(f"its pattern has {text}: back references are not to be had in linear time")
    if kind in classes:
        return classes[kind] if in_class else f"[{classes[kind]}]"
    if kind == "W":
        return f"[^{classes['w']}]"
    if kind in "uUx":
        return f"\\x{{{text[2:]}}}"
    # The end of the text, a backspace, and a character that stands for itself.
    others = {"Z": "\\z"} | ({"b": "\\x08"} if in_class else {})
    return others.get(kind, text if kind.isascii() else kind)


def _text(found: bytes | None) -> str:
    return "" if found is None else found.decode()


@dataclass(frozen=True, slots=True)
class Handler:
    """Exactly one of them: the `tool` of a module (`module.method`), or the import `path` of a function."""

    tool: str | None = None
    path: str | None = None


def handler_of(value: str | Callable[..., Any], *, is_here: bool = False) -> Handler:
    """Parse a tool's handler. Raises `ValueError` if no worker could run it; or, if it `is_here`, no process at all."""
    if not isinstance(value, str):
        return Handler(path=path_of(value, is_here=is_here))
    if ":" in value:
        module, _, name = value.partition(":")
        if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"its handler {value!r} is no import path of the form 'package.module:function'")
        return Handler(path=value)
    try:
        return Handler(tool=str(ToolName.parse(value)))
    except InvalidToolName:
        raise ValueError(
            f"its handler {value!r} is neither a module's tool ('module.method') nor 'package.module:function'"
        ) from None


def path_of(function: Callable[..., Any], *, is_here: bool = False) -> str:
    """Return `package.module:function`, by which a worker finds a function. Raises `ValueError` if it could not.

    A function that `is_here` runs in this process only, so that no worker has to find it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        reason = f"its handler, a {type(function).__name__}, is no function that a worker could import"
        raise ValueError(reason)
    if inspect.isclass(function) or not callable(function):
        raise ValueError(f"its handler {name!r} is no function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"its handler {name!r} yields; a tool returns one result")
    if is_here:
        return f"{module}:{name}"
    if module == "__main__":
        raise ValueError(f"its handler {name!r} is in the program that was started; put it into a module of its own")
    if getattr(sys.modules.get(module), name, None) is not function:  # also `<lambda>`, `f.<locals>.g` and `Class.f`
        raise ValueError(
            f"its handler {name!r} cannot travel to a worker: it must be a function that {module!r} has under this name, "
            "no closure, lambda, method or nested function"
        )
    return f"{module}:{name}"


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
    """The tags of an agent. They are registered at its start; later lookups change nothing.

    Args:
        runs_here: Whether the tools' functions run in this process, and can be any function. Otherwise workers must be able
            to import them.

    """

    def __init__(self, *, runs_here: bool = False) -> None:
        self._tags: dict[str, Tag] = {}
        self._runs_here = runs_here

    def register(self, tool: ToolDef) -> None:
        """Add a tool.

        Args:
            tool: The tool; it is validated here.

        Raises:
            ValueError: The name or the prefix is taken, or a field of the tool is invalid; the message says which.

        """
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
        """Return the tool of this name.

        Args:
            name: The tool's name.

        Returns:
            The tool, or None if there is none of this name.

        """
        tag = self._tags.get(name)
        return None if tag is None else tag.tool

    def all_tools(self) -> list[ToolDef]:
        """Return all tools, sorted by name."""
        return [tag.tool for tag in self._tags.values()]

    def tags(self) -> Mapping[str, Tag]:
        """Return all tools with their handlers and patterns, by name."""
        return self._tags

    def prompt_block(self) -> str:
        """Return the part of a prompt that tells a model about its tags; no line of it is itself a tag.

        Returns:
            The text, empty if there are no tags.

        """
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
    for name in LIMITS:
        if name != "cost" and not 0 <= (value := getattr(tool, name)) < float("inf"):
            raise ValueError(f"its {name} must be 0 or more, not {value!r}")
    if not tool.listed and isinstance(tool.handler, str) and ":" not in tool.handler:
        raise ValueError(f"its handler {tool.handler!r} is a module's tool, which its module lists")


def _example(tool: ToolDef) -> str:
    if tool.prompt_example:
        return " ".join(tool.prompt_example.split())
    return f"{tool.tag_prefix}: " + " ".join(f"[{group}]" for group in tool.arg_groups)


@dataclass(frozen=True, slots=True)
class TagCall:
    """A tag that was found."""

    name: str
    """The tool's name."""
    context: ToolContext
    """The text that the tool gets."""
    text: str
    """The text of the tag's line or lines."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The tags found in a model's text, and its remainder."""

    tool_calls: list[TagCall] = field(default_factory=list)
    """The calls, in the order of their tags."""
    display_text: str = ""
    """The text without the tags, as a person sees it."""
    is_cut: bool = False
    """Whether a bound was reached, so that there may be further tags in the text."""


def parse_response(
    raw: str, registry: Tags, *, context: ToolContext | None = None, in_fences: bool = False
) -> ParsedResponse:
    """Find the tags in a model's text: `PREFIX:`, a space, and an argument up to the end of the line, each at the start of a line.

    As in Markdown, lines between two fences of a code block are quoted and not searched; a fence that is not closed quotes
    nothing. A line ends with LF or CRLF. The space can contain line ends, but an argument never begins with the line of
    another tag.

    Args:
        raw: The model's text. Half surrogate pairs become "?".
        registry: The tags to look for.
        context: The agent's context. Each call gets it with its own argument.
        in_fences: Whether code blocks are searched as well.

    Returns:
        The calls, and the text without the removed tags. Where tags were removed, the text has no blank lines at its ends,
        and no two blank lines in a row.

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
        """Return the text without these spans of `lines`."""
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
        rest, after = MOST_TEXT_STEPS, dict.fromkeys(self._tags, 0)
        for line in _TAG_START.finditer(self._lines):
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
    """Yield the closed code blocks, with their fences."""
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
    """Yield the spans with their line ends, and with the blank lines after them if blank lines also precede them."""
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
