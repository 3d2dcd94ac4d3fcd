"""What is ruled out at once has nothing that the detectors would find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.personal_data.corpus import labelled_texts
from toolfleet_registry.personal_data.personal_data import PersonalData
from toolfleet_registry.personal_data.quick_check import QuickCheck

CHECK, DATA = QuickCheck(), PersonalData()
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
texts = st.lists(
    st.one_of(st.sampled_from([*PLACES, *PARTS]), st.text("0123456789abefABEF:.-/()@+ w_%\\u&#;", max_size=24)),
    max_size=3,
).map(" ".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


@given(values)
def test_what_is_ruled_out_has_nothing(value: object) -> None:
    """The detectors agree, whatever the value."""
    if CHECK.rules_out(value):
        assert DATA.hide([value, "owl@example.com"]).value == [value, "[EMAIL]"]


def test_nothing_of_the_corpus_is_ruled_out() -> None:
    """Each piece of personal data in 2,000 texts, as a value and as a member's name."""
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
