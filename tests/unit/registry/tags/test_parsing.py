"""Finding tags in what a model wrote."""

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.local_tools.tag_tools import learning_tag, research_tag, tag
from support.schemas.examples import examples
from support.there import there
from toolfleet_registry.tags import (
    LONGEST_TEXT,
    MOST_CALLS,
    MOST_TEXT_STEPS,
    ParsedResponse,
    TagMatch,
    TagPattern,
    Tags,
    ToolContext,
    ToolDef,
    parse_response,
)


def tags_of(*tools: ToolDef) -> Tags:
    tags = Tags()
    for tool in tools:
        tags.register(tool)
    return tags


HALVES = "".join(random.Random(1).choices("xy", k=98_000))
LINES = [
    "factual owls see",
    "owls in winter",
    "a@b.example owls",
    "https://owls.example x",
    "2026-01-01 owls",
    "a | b",
    "owls",
    "a|b|c",
]
TAGS = tags_of(research_tag, learning_tag, tag("source", strip_from_display=False), tag("claim"))


def found(parsed: ParsedResponse) -> list[tuple[str, str]]:
    return [(call.name, call.context.raw_arg) for call in parsed.tool_calls]


def test_a_tag_on_a_line_of_its_own_is_a_call_and_is_not_shown() -> None:
    """The argument is what follows the colon and its space; the rest of the text is for the person."""
    parsed = parse_response("Let me look.\nRESEARCH: owls in winter\nOne moment.", TAGS)

    assert found(parsed) == [("research", "owls in winter")]
    assert parsed.tool_calls[0].text == "RESEARCH: owls in winter"
    assert parsed.display_text == "Let me look.\nOne moment."
    assert not parsed.is_cut


def test_a_pattern_with_two_groups_names_both() -> None:
    """LEARNING has a category and what was learned; what does not fit is no call and stays in the text."""
    parsed = parse_response("LEARNING: factual owls see\tat night \nLEARNING: gossip owls talk", TAGS)

    (call,) = parsed.tool_calls
    assert call.context.groups == {"category": "factual", "content": "owls see\tat night "}
    assert call.context.raw_arg == "factual owls see\tat night "
    assert parsed.display_text == "LEARNING: gossip owls talk"


def test_a_call_is_told_what_the_agent_knows() -> None:
    """The context that the agent gives is each call's, with its own argument."""
    context = ToolContext(raw_arg="", user_message="Owls?", user="@ada", chat_id=7, kb_context="kb", confidence=0.5)
    parsed = parse_response("RESEARCH: owls", TAGS, context=context)

    assert parsed.tool_calls[0].context == context.model_copy(update={"raw_arg": "owls", "groups": {"raw_arg": "owls"}})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("RESEARCH:\nowls", [("research", "owls")]),  # the space may be a line's end
        ("RESEARCH:\u00a0owls", [("research", "owls")]),  # as models write it
        ("RESEARCH:  owls ", [("research", "owls ")]),
        ("RESEARCH:owls", []),
        ("RESEARCH: ", []),
        (" RESEARCH: owls", []),
        ("**RESEARCH:** owls", []),
        ("> RESEARCH: owls", []),
        ("research: owls", []),
        ("I say RESEARCH: owls", []),
        ("RESEARCH:\nRESEARCH:\nSOURCE: a", [("source", "a")]),  # no tag is another's argument
        ("RESEARCH:\n\n  SOURCE: a", [("research", "SOURCE: a")]),  # that is no tag
        ("RESEARCH: Käuze 🦉\nCLAIM: ö", [("research", "Käuze 🦉"), ("claim", "ö")]),
        ("RESEARCH: a\rb", [("research", "a\rb")]),
        ("CLAIM: a\x85b\u2028c", [("claim", "a\x85b\u2028c")]),  # no line ends here
        ("SOURCE: a\nCLAIM: b\nSOURCE: c", [("source", "a"), ("claim", "b"), ("source", "c")]),  # in their order
        ("", []),
    ],
)
def test_what_is_a_tag(raw: str, expected: list[tuple[str, str]]) -> None:
    r"""`^PREFIX:\s+<pattern>$`, where lines end with LF."""
    assert found(parse_response(raw, TAGS)) == expected


def test_lines_may_end_as_windows_ends_them() -> None:
    """No argument has the carriage return, and the rest of the text keeps its own."""
    parsed = parse_response("Hi.\r\nRESEARCH: owls\r\nCLAIM: a\nBye.\r\n\r\nYours", TAGS)

    assert found(parsed) == [("research", "owls"), ("claim", "a")]
    assert parsed.display_text == "Hi.\r\nBye.\r\n\r\nYours"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("```\nRESEARCH: a\n```\nRESEARCH: b", ["b"]),
        ("~~~ text\nRESEARCH: a\n```\nRESEARCH: b\n~~~\nRESEARCH: c", ["c"]),
        ("````\n```\nRESEARCH: a\n```\n````", []),
        ("```\nRESEARCH: a", ["a"]),  # nothing closes it: the model forgot, or was cut off
        ("```RESEARCH: a```\nRESEARCH: b\n```", ["b"]),  # code within a line
        ("RESEARCH:\n```\na\n```", []),
    ],
)
def test_a_tag_in_a_code_block_is_quoted(raw: str, expected: list[str]) -> None:
    """A model that explains a tag does not call it; an agent may say that its model means it."""
    assert [call.context.raw_arg for call in parse_response(raw, TAGS).tool_calls] == expected
    quoted = parse_response("```\nRESEARCH: a\n```", TAGS, in_fences=True)
    assert found(quoted) == [("research", "a")]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("A\n\nCLAIM: x\n\nB", "A\n\nB"),
        ("A\n\nCLAIM: x\n\nCLAIM: y\n\nB", "A\n\nB"),
        ("A\nCLAIM: x\nB", "A\nB"),
        ("CLAIM: x\n\n\nB\n", "B"),
        ("A\n\nCLAIM: x\n", "A"),
        ("CLAIM: x", ""),
        ("SOURCE: a\nCLAIM: b\nSOURCE: c", "SOURCE: a\nSOURCE: c"),  # these are meant to be seen
        ("\n A \n\n\nB\n", "\n A \n\n\nB\n"),  # nothing was taken away
    ],
)
def test_no_hole_is_left_where_a_tag_was(raw: str, shown: str) -> None:
    """Blank lines around it become one, or none at the ends. A text without tags stays as it is."""
    assert parse_response(raw, TAGS).display_text == shown


def test_a_prompt_that_is_repeated_calls_nothing() -> None:
    """Models quote what they were told."""
    assert parse_response(TAGS.prompt_block(), TAGS).tool_calls == []


@pytest.mark.parametrize(
    ("pattern", "argument"),
    [
        (r"(\w+) (\d+) (\S+)", "Käuze ٣ 🦉"),  # letters and digits of all languages
        (r"([\w-]+?)(\W)([^\d\s]{,3})", "Grüß Öff"),
        (r"([]a]+)([a[]?)(.*)", "]a["),
        (r"(?:(\x41)|(\u00e4))(\Z)", "ä"),
        (r"(a|b)|(c)(d)", "cd"),  # alternatives are the pattern's, not the line's
        (r"(?i:(ÄB))(\.)( \ )", "äb.  "),
        (r"(?P<one>[\s\d])([\s\S])([\D][^\S\n]\S)", " xx\u3000y"),
    ],
)
def test_a_pattern_means_what_it_means_to_python(pattern: str, argument: str) -> None:
    """RE2 reads classes, repetitions and escapes in another way; the same groups are found all the same."""
    tool = tag("t", arg_pattern=pattern, arg_groups=["a", "b", "c"])
    (call,) = parse_response(f"T: {argument}", tags_of(tool)).tool_calls

    match = there(re.search(f"^T:\\s+(?:{pattern})$", f"T: {argument}", re.MULTILINE))
    assert list(call.context.groups.values()) == [group or "" for group in match.groups()]


@pytest.mark.parametrize("pattern", [r"([\W])", r"([^\W\d])", r"((?-i:a))", r"(\12)", "([[a])"])
def test_a_pattern_that_would_mean_something_else_is_refused(pattern: str) -> None:
    """What RE2 would take for something else than Python."""
    with pytest.raises(ValueError, match=r"^Tool 't': its pattern "):
        tags_of(tag("t", arg_pattern=pattern))


PIECES = st.sampled_from(
    ["a", "b", r"\w", r"\d", r"\s", ".", "[ab]", "[^a]", r"[\wä]", "(a|b)", "(?:ab|a)", "ä", r"\."]
)
REPEATED = st.builds("{}{}".format, PIECES, st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "{1,2}", "{,2}"]))
PATTERNS = st.lists(REPEATED, min_size=1, max_size=5).map("".join)
TEXTS = st.lists(
    st.sampled_from(
        ["A: ", "A:", "\n", "\r\n", " ", "a", "b", "ab", "ä", "1", ".", "B: x", "```\n", "\ud800", "\u2003"]
    )
).map("".join)


@settings(max_examples=examples(300), deadline=None)
@given(pattern=PATTERNS, text=TEXTS)
@example(pattern="(a|b)*?.*", text="A: ab\nA:\nA: b")
def test_any_text_has_the_tags_that_pythons_own_expressions_find(pattern: str, text: str) -> None:
    """Where no argument begins with the line of a tag, and nothing is fenced: there our rule adds to the seed's."""
    groups = re.compile(pattern).groups
    names = [f"g{number}" for number in range(groups)] or ["all"]
    tags = tags_of(tag("a", arg_pattern=pattern, arg_groups=names))
    plain = text.encode("utf-8", "replace").decode().replace("\r\n", "\n")
    matches = list(re.finditer(rf"^A:\s+(?:{pattern})$", plain, re.MULTILINE))

    parsed = parse_response(text, tags, in_fences=True)
    calls = [list(call.context.groups.values()) for call in parsed.tool_calls]
    if not any(re.search(r"\n(A:|```|~~~)", match.group()) for match in matches):
        expected = [[group or "" for group in match.groups()] if groups else [match.group()] for match in matches]
        assert len(calls) == len(expected)
        assert not groups or calls == expected


@settings(max_examples=examples(300), deadline=None)
@given(text=st.text() | TEXTS)
def test_nothing_is_lost_but_the_tags(text: str) -> None:
    """Whatever a model writes: what is shown are the lines that are no tags, in their order; and no call is made up."""
    parsed = parse_response(text, TAGS)
    whole = text.encode("utf-8", "replace").decode()

    if not parsed.tool_calls:
        assert parsed.display_text == whole
    lines = iter(whole.splitlines())
    assert all(line in lines for line in parsed.display_text.splitlines() if line)
    assert all(call.text.encode().decode() in whole.replace("\r\n", "\n") for call in parsed.tool_calls)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"((?:a+)+)b", "A: " + "a" * LONGEST_TEXT),  # exponential for an engine that goes back
        (r"((?:a|a)*)b", "A: " + "a" * LONGEST_TEXT),
        (r"((?:\s|\w|.)*)b", "A: " + "a " * (LONGEST_TEXT // 2)),
        (r"((?s:.*)(?s:.*)(?s:.*)END)", "A: x\n" * (LONGEST_TEXT // 5)),
        (r"((?:(?s:.*)END|x))", "A: x\n" * (LONGEST_TEXT // 5)),  # each search reads everything
        (r"((?s:.*)[a-z].{0,40}q.{0,40}[0-9])", ("A: " + "aq" * 150 + "\n") * (LONGEST_TEXT // 304)),
        # Of those that are too much for the fast way of RE2, and of which each search reads everything.
        (r"((?s:.*)[ab](?s:.{500})q|x)", "A: x\nabbabaababbaaabbababbabaab\n" * (LONGEST_TEXT // 32)),
        (r"((?s:.*[ab].{200}q.{200})|x)", "A: x\nabbabaababbaaabbababbabaab\n" * (LONGEST_TEXT // 32)),
        (r"(.{0,150}.{0,150}x)", "A: " + "ä" * LONGEST_TEXT),
        (r"([\w\s]*x[\w\s\d]{20}END)", "A: " + "xyé中 " * (LONGEST_TEXT // 5)),
        (r"(.+)", "A:\n" * (LONGEST_TEXT // 3)),
        (r"(.+)", "A: x\n```\n" * (LONGEST_TEXT // 9)),
        (r"(.+)", "A:" + " \n" * (LONGEST_TEXT // 2)),
        # Of which the first look already reads everything.
        (r"((?:\s|\S)*x(?:\s|\S){300}END)", "A: q\n" + HALVES),
        (r"([\s\S]*x.{200})", "A: q\n" + HALVES),
        (r"((?:\w|\s)*(?:\w?x?){10}END)", "A: q\n" + HALVES),
    ],
)
@pytest.mark.parametrize("count", [1, 20])
def test_no_text_keeps_an_agent_for_long(pattern: str, text: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's steps, of which it takes a bounded number for each byte, are bounded for all tags together."""
    steps, match = list[int](), TagPattern.match

    def noted(self: TagPattern, data: bytes, position: int, end: int) -> TagMatch | None:
        steps.append(self.steps * (end - position))
        return match(self, data, position, end)

    monkeypatch.setattr(TagPattern, "match", noted)
    tags = tags_of(*(tag(f"a{n}" if n else "a", arg_pattern=pattern) for n in range(count)))
    text = "".join(f"A{n}: q\n" for n in range(1, count)) + text
    parsed = parse_response(text, tags)

    assert sum(steps) <= MOST_TEXT_STEPS
    assert len(parsed.tool_calls) <= MOST_CALLS


@pytest.mark.parametrize(
    "pattern", [r"((?:\s|\S)*x(?:\s|\S){900}END)", r"((?:(?:\s|\S){1,30}){1,20}END)", r"(.{1,500})", r"(.*x.{800}END)"]
)
def test_a_pattern_that_takes_too_many_steps_is_refused(pattern: str) -> None:
    """At registration, by its size: whatever a model will write, and however often."""
    with pytest.raises(ValueError, match=r"^Tool 't': its pattern is too large: it takes \d+ steps for each character"):
        tags_of(tag("t", arg_pattern=pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(.+)",
        r"(factual|communication|structured_data)\s+(.+)",
        r"(\w+)\s+(\w+)\s+(.+)",
        r"([\w.-]+@[\w.-]+)\s+(.+)",
        r"(https?://\S+)\s*(.*)",
        r"(\d{4}-\d{2}-\d{2})(?: (\d\d:\d\d))?\s+(.+)",
        r"(.{1,80})\s*\|\s*(.{1,200})",
        r"(\w{1,30})",
        r"([^|]+)\|([^|]+)\|([^|]+)",
    ],
)
def test_a_usual_pattern_is_taken_and_looked_for_to_the_end(pattern: str) -> None:
    """In a long answer with as many tags as may be, all of them are found."""
    names = list("abc"[: re.compile(pattern).groups])
    tags = tags_of(tag("t", arg_pattern=pattern, arg_groups=names))
    line = next(each for each in LINES if re.fullmatch(pattern, each)) if pattern != "(.+)" else "owls in winter"
    parsed = parse_response(f"T: {line}\n" * 60 + "and so on\n" * 20, tags)

    assert len(parsed.tool_calls) in {60, 20}  # some of them take three lines for one
    assert not parsed.is_cut


def test_what_comes_first_is_looked_for_first() -> None:
    """When all that may be done for one text is done: whichever tag it is."""
    tags = tags_of(tag("a", arg_pattern=r"((?s:.*)x(?s:.{300})END|.)"), tag("b"))
    parsed = parse_response("B: 1\n" + "A: 2\n" * 200 + "B: 3\n" + HALVES[:2_000], tags)

    assert parsed.is_cut
    assert found(parsed)[0] == ("b", "1")
    assert ("b", "3") not in found(parsed)


def test_of_very_many_tags_the_first_ones_are_taken() -> None:
    """The others stay in the text, and whoever asks is told."""
    parsed = parse_response("CLAIM: x\n" * (MOST_CALLS + 2), TAGS)
    assert len(parsed.tool_calls) == MOST_CALLS
    assert parsed.display_text == "CLAIM: x\nCLAIM: x"
    assert parsed.is_cut

    parsed = parse_response("A:\n" * (LONGEST_TEXT // 3 - 2) + "A: x", tags_of(tag("a")))
    assert parsed.tool_calls == []
    assert parsed.is_cut
    parsed = parse_response("CLAIM:\n" * 10_000 + "CLAIM: x", TAGS)  # but not so soon
    assert found(parsed) == [("claim", "x")]
    assert not parsed.is_cut


def test_a_very_long_text_is_looked_at_from_its_start() -> None:
    """No line is cut through: a tag with half of its argument would be another call."""
    start, rest = "CLAIM: a\n", "CLAIM: " + "b" * LONGEST_TEXT + "\nCLAIM: c"
    parsed = parse_response(start + rest, TAGS)

    assert found(parsed) == [("claim", "a")]
    assert parsed.display_text == rest
    assert parsed.is_cut
