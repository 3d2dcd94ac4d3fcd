"""What holds for all values: hidden is hidden, nothing else changes, no text takes long, and what is ruled out at once has nothing."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.personal_data.corpus import labelled_texts
from toolfleet_registry.personal_data.findings import Strategy
from toolfleet_registry.personal_data.personal_data import PersonalData, QuickCheck

KEY = b"sixteen bytes or more"
OWN = {"employee": r"E-\d{3,6}", "word": r"\b[a-f]{3,8}\b"}
PIECES = sorted({each.text[place.start : place.end] for each in labelled_texts(150) for place in each.places})
CODES = [
    "%40",
    "%20",
    "%2540",
    "%C3%A4",
    "%5B",
    "\\u0040",
    "\\\\u200b",
    "&#64;",
    "&amp;",
    "&shy;",
    "\u200b",
    "\u00ad",
    "_",
]
DATA: dict[Strategy, PersonalData] = {
    strategy: PersonalData(patterns=OWN, strategy=strategy, key=KEY) for strategy in ("redact", "mask", "hash")
}
texts = st.lists(
    st.one_of(
        st.sampled_from(PIECES),
        st.sampled_from(
            [
                " ",
                "",
                "-",
                ".",
                ":",
                "@",
                "/",
                "+",
                "(",
                "[EMAIL]",
                "E-123",
                "\\n",
                "\n",
                "0",
                "é",
                "電話",
                "tel ",
                *CODES,
            ]
        ),
        st.text(max_size=6),
    ),
    max_size=8,
).map("".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
strategies = st.sampled_from(sorted(DATA))


@given(values, strategies)
def test_what_is_hidden_has_nothing_and_stays(value: Any, strategy: Strategy) -> None:
    """Nothing is found in it any more, and hiding it again changes nothing."""
    hidden = DATA[strategy].hide(value)
    again = DATA[strategy].hide(hidden.value)

    assert again.value is hidden.value
    assert again.counts == {}
    assert (hidden.value is value) == (hidden.counts == {})


@given(values, strategies)
def test_nothing_else_changes(value: Any, strategy: Strategy) -> None:
    """The value keeps its shape: each object its members, each list its items, in their order."""
    hidden = DATA[strategy].hide(value).value

    assert _shape(hidden) == _shape(value)


@given(texts)
def test_what_stands_around_is_kept(text: str) -> None:
    """Between the findings a text is as it was, unless a new edge shows more."""
    data = DATA["redact"]
    places = data.find(text)
    kept, position = [], 0
    for place in places:
        assert position <= place.start < place.end <= len(text)
        kept.append(text[position : place.start])
        position = place.end
    hidden = data.hide(text).value

    if len(data.find("|".join([*kept, text[position:]]))) == 0 and not re.search(r"\[[A-Z]", text):
        assert re.split(r"\[(?:[A-Z_]+)\]", hidden) == [*kept, text[position:]]


@given(values)
def test_many_texts_are_searched_as_each_alone(value: Any) -> None:
    """A list's texts have the findings that each has by itself, whatever stands beside them."""
    items = [json.dumps(value), *PIECES[:5], str(value)]
    data = DATA["redact"]

    assert data.hide(items).value == [data.hide(item).value for item in items]


_HOSTILE = [
    "1", "0", "@", ".", ":", "-", "(", "a@", "a@b.", "1.", "a:", "1 ", "0171 ", "+49 171 1234567 ", "4111 ", "DE12 ", "http://", "www.", "(1)",
    "1.2.3.4 ", "1-", "x@x.xx,", "1::2 ", "[EMAIL", "[EMAIL]", "é@", "0049 171 1234567,", "\\n", "tel 4155552671 ", "a.", "://", "+", "１", "E-1",
    "00:1a:", "\ud800@a.b", "https://a.b/)", "電話",
]  # fmt: skip


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("piece", _HOSTILE)
def test_no_text_takes_more_than_its_length(piece: str, size: int) -> None:
    """A megabyte of the same ends within the time of a test; with steps for each pair of characters it would take a day."""
    data = DATA["redact"]
    text = piece * (size // len(piece))

    hidden = data.hide({"text": text, text[:1000]: [text[:1000]]}).value
    assert data.find(hidden["text"]) == []


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [_shape(member) for member in value.values()]
    return [_shape(item) for item in value] if isinstance(value, list) else None


CHECK, ALL = QuickCheck(), PersonalData()
PLACES = sorted({each.text[place.start : place.end] for each in labelled_texts(2_000) for place in each.places})
PARTS = [
    "fe80::1",
    "::1",
    "1:2:3:4:5:6:7:8",
    "aa-bb-cc-dd-ee-ff",
    "0a1b.2c3d.4e5f",
    "DE89370400440532013000",
    "1.2.3.4",
    "owl%40example.com",
    "owl\\u0040example.com",
    "owl&#64;example.com",
    "owl&commat;example.com",
    "https:\\/\\/example.com",
    "owl\\x40example.com",
    "4111_1111_1111_1111",
    "4111%201111%201111%201111",
]
odd_texts = st.lists(
    st.one_of(st.sampled_from([*PLACES, *PARTS]), st.text("0123456789abefABEF:.-/()@+ w_%\\u&#;", max_size=24)),
    max_size=3,
).map(" ".join)
odd_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), odd_texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_texts, inner, max_size=3)),
    max_leaves=6,
)


@given(odd_values)
def test_what_is_ruled_out_has_nothing(value: object) -> None:
    """The detectors agree, whatever the value."""
    if CHECK.rules_out(value):
        assert ALL.hide([value, "owl@example.com"]).value == [value, "[EMAIL]"]


def test_nothing_of_the_corpus_is_ruled_out() -> None:
    """Each piece of personal data in 2,000 odd_texts, as a value and as a member's name."""
    assert len(PLACES) > 500
    assert [place for place in [*PLACES, *PARTS] if CHECK.rules_out(place) or CHECK.rules_out({place: 1})] == []


@pytest.mark.parametrize(
    ("value", "is_out"),
    [
        ({"title": "note 1234", "tags": ["a", "b"], "number": 123456, "half": 0.5}, True),
        ({"at": "12:30", "version": "1.2", "host": "example.com", "day": "1 May"}, True),
        ([[[]], {}, "", None, True], True),
        (491711234567, False),
        (4.1e20, False),
        ("\uff14\uff11", False),
        ({(1, 2): 3}, False),
        ({1, 2}, False),
    ],
)
def test_ordinary_values_are_ruled_out(value: object, is_out: bool) -> None:
    """What no detector starts from is; other scripts, long numbers and what is no JSON are not."""
    assert CHECK.rules_out(value) is is_out


def test_what_is_deep_is_left_to_the_detectors() -> None:
    """They hide what lies deeper than they search."""
    value: object = "owl"
    for _ in range(2_000):
        value = [value]

    assert not CHECK.rules_out(value)
