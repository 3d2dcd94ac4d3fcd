"""How large a schema's regular expressions get when they are compiled, and how long they take: known before it is done."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_STATES = 5_200
"""Of one pattern: half a megabyte, and some 5 ms to compile it. `.{1,512}` has as many, `\\p{L}{1,13}` too."""

ENDLESS = 10**9

BACKTRACKING = re.compile(r"\(\?[=!<]|\\[1-9]|\\k")


@dataclass(frozen=True, slots=True)
class Patterns:
    """Units of effort for each character of a text, and for each text."""

    a_character: int = 0
    a_text: int = 0

    def __add__(self, other: "Patterns") -> "Patterns":
        return Patterns(self.a_character + other.a_character, self.a_text + other.a_text)


@dataclass(frozen=True, slots=True)
class PatternSizes:
    """Of all patterns of a document: how many, how many states in all, and in the largest one."""

    count: int = 0
    states: int = 0
    largest: int = 0


def patterns_of(schema: Mapping[str, Any]) -> Patterns:
    """What one schema's own patterns take. In the worst case each of a pattern's states is looked at for each character."""
    patterns = _patterns(schema)
    if not patterns:
        return NO_PATTERNS
    tracking = sum(BACKTRACKING.search(pattern) is not None for pattern in patterns)
    return Patterns(sum(map(_looks, patterns)), _TRACKING * tracking)


def sizes_in(document: Any) -> PatternSizes:
    """Of every pattern anywhere in it: also those that nothing refers to are compiled once."""
    count, states, largest = 0, 0, 0
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for pattern in _patterns(node):
                size = states_of(pattern)
                count, states, largest = count + 1, states + size, max(largest, size)
            waiting.extend(child for child in node.values() if isinstance(child, dict | list))
        else:
            waiting.extend(child for child in node if isinstance(child, dict | list))
    return PatternSizes(count, min(ENDLESS, states), largest)


def states_of(pattern: str) -> int:
    """About as many as the engine makes of it, with some 100 bytes each; for what it would not take, any number."""
    open_groups, here, atom = list[int](), 0, 0  # `atom` is the last part of `here`, which a count repeats
    cases = 1
    for piece in _pieces(pattern):
        if piece == ")":
            here, atom = (open_groups.pop() if open_groups else 0) + here, here
        elif piece[0] in "^$*+?|":
            here += 1
        elif piece[0] == "(":
            cases = _IN_BOTH_CASES if _CASELESS.match(piece) else cases
            if piece.endswith(")"):  # flags, for what follows
                here += ENDLESS if "x" in piece else 1  # blanks without a meaning: nobody writes them in JSON
                continue
            open_groups.append(here)
            here, atom = 2, 0
        elif (times := _times(piece)) is not None:
            here, atom = min(ENDLESS, here + atom * (times - 1)), min(ENDLESS, atom * times)
        else:
            atom = _states_of_a_character(piece)
            here += atom
    return min(ENDLESS, cases * (here + sum(open_groups)))


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    members = schema.get("patternProperties")
    texts = [schema.get("pattern"), *(members if isinstance(members, dict) else ())]
    return [text for text in texts if isinstance(text, str)]


def _pieces(pattern: str) -> Iterator[str]:
    return (match.group() for match in _PIECE.finditer(pattern))


def _times(piece: str) -> int | None:
    count = _COUNT.fullmatch(piece)
    if count is None:
        return None
    return max(1, *(int(number[:_DIGITS]) for number in count.groups() if number))


def _states_of_a_character(piece: str) -> int:
    properties = len(_PROPERTY.findall(piece))
    if properties:
        return _OF_A_PROPERTY * properties
    if piece == ".":
        return _OF_ANY_CHARACTER
    wide = _OF_ANY_CHARACTER * len(_WIDE.findall(piece)) + _OF_BLANKS * len(_BLANKS.findall(piece))
    return 1 + wide + _OF_OTHERS * len(_OTHERS.findall(piece))


def _looks(pattern: str) -> int:
    states = len(pattern) + sum(int(match[1]) for match in _CHARACTER_COUNT.finditer(pattern))
    for match in _GROUP_COUNT.finditer(pattern):
        states = min(ENDLESS, states * max(1, int(match[1])))
    return states // _STATES_A_UNIT


NO_PATTERNS = Patterns()
_TRACKING = 20_000  # units of a pattern that may try again and again, up to the limit that it is compiled with
_STATES_A_UNIT = 4  # some 5 to 9 ns for each
_OF_A_PROPERTY = 400  # such as `\p{L}`: the letters of all languages, byte by byte
_OF_ANY_CHARACTER = 10
_OF_BLANKS = 18
_IN_BOTH_CASES = 4  # times as many: three letters of ASCII have kin outside of it
_OF_OTHERS = 5  # outside of ASCII
_DIGITS = 9
_PROPERTY = re.compile(r"\\[pP]")
_WIDE = re.compile(r"^\[\^|\\[DW]|\[:\^")
_BLANKS = re.compile(r"\\[sS]")
_OTHERS = re.compile(r"\\u(?!00[0-7])|\\x[89a-fA-F{]|[^\x00-\x7f]")
_CASELESS = re.compile(r"\(\?[a-zA-Z]*i")
_COUNT = re.compile(r"\{(\d*),?(\d*)\}")
_CHARACTER_COUNT = re.compile(r"(?<!\))\{(?:\d{0,6},)?(\d{1,6})\}")
_GROUP_COUNT = re.compile(r"(?<=\))\{(?:\d{0,6},)?(\d{1,6})\}")
_PIECE = re.compile(
    r"\\[pP](?:\{[^}]*\}|.?)|\\[xu](?:\{[^}]*\}|[0-9a-fA-F]{2,4})|\\.?"
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]?"
    r"|\((?:\?(?:[:=!>]|<[=!]|P?<[^>]*>|[a-zA-Z-]*[:)]))?"
    r"|\{\d*,?\d*\}|.",
    re.DOTALL,
)
