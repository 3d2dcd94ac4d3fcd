"""What holds for all values: hidden is hidden, nothing else changes, and no text takes long."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.personal_data.corpus import labelled_texts
from toolfleet_registry.personal_data.personal_data import PersonalData
from toolfleet_registry.personal_data.strategies import Strategy

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
