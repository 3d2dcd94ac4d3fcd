"""How large a regular expression is, is known before anybody compiles it."""

from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator, RegexOptions

from support.schemas.examples import examples
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas import checker
from toolfleet_registry.schemas.patterns import MOST_STATES, PatternSizes, sizes_in, states_of
from toolfleet_registry.schemas.validation import schema_fault

BYTES_A_STATE, BYTES_OF_ANY = 160, 2**13

SENSIBLE = [
    r"^[\w.+-]{1,64}@[\w-]+(\.[\w-]+){1,8}$",
    r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?Z?)?$",
    r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    r"^(https?|ftp)://[^\s/$.?#].[^\s]*$",
    r"^.{1,500}$",
    r"^[^\x00-\x1f]{1,200}$",
    r"^[a-zA-Z0-9_-]{1,1000}$",
    r"^\p{Lu}[\p{L}\p{M}' -]*$",
    r"^(?=.*[0-9])(?=.*[a-z]).{8,64}$",
    r"^\+?[1-9]\d{1,14}$",
    r"^(?!\s)(.|\n){0,100}$",
]


def of(**schema: Any) -> ToolDefinition:
    return ToolDefinition(name="owls.count", input_schema={"type": "object", "properties": {"x": schema}})


@pytest.mark.parametrize("pattern", SENSIBLE)
def test_a_sensible_pattern_is_taken(pattern: str) -> None:
    """Such as people write in their tools."""
    assert schema_fault(of(pattern=pattern)) is None


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,30}", 30),
        ("a{5,}", 5),
        ("(ab){100}", 400),
        ("(a(b){10}){10}", 330),
        ("a{10}{10}?{10}", 1001),
        (".{7}", 70),
        (r"\p{L}{16}", 6_400),
        (r"\pL\P{L}", 800),
        (r"[\p{L}\p{N}]{2}", 1_600),
        (r"\u{41}{2}", 12),
        (r"\{9\}", 3),
        (r"[{9}]", 1),
        (r"[]a]{9}", 9),
        (r"[^a]{9}", 99),
        (r"[\]{9}]", 1),
        (r"(?i:a{4}", 24),
        (")" * 3 + "*", 1),
    ],
)
def test_the_size_of_a_pattern(pattern: str, states: int) -> None:
    """A letter is one state, any character ten, those of all languages some hundred; and a count multiplies them."""
    assert states_of(pattern) == states


ALPHABET = r"""
    a é 中 . s \w \W \s \S \d \D \p{L} \PL \p{Lu} \p{Alphabetic} [a-z] [^a] [a-zé] [\W.] [^\w] [\S] [^\p{L}\p{N}]
    [[:alpha:]] [[a]{9}] [^]{9}a] \x41 \u00e9 [\u0100-\uffff] \b \{ ^ $ (?i) (?s) (?x) (?i:é) #
"""
CHARACTERS = st.sampled_from([*ALPHABET.split(), " ", "\n"])
COUNTS = st.sampled_from(["", "", "", "*", "+?", "?", "{3}", "{1,5}", "{2,}", "{,7}", "{20}", "{1,50}", "{3}{4}"])
SIMPLE = st.lists(st.builds("{}{}".format, CHARACTERS, COUNTS), max_size=4).map("".join)
PATTERNS = st.recursive(
    SIMPLE,
    lambda inner: st.builds("({}){}{}".format, inner, COUNTS, inner) | st.builds("{}|{}".format, inner, inner),
    max_leaves=6,
)


@settings(max_examples=examples(300), deadline=None)
@given(pattern=PATTERNS)
@example(pattern=r"(?:\b{3}[\W]?\p{Alphabetic}{1,5}){1,5}")
@example(pattern=r"(?x)\p{L} {99}")
def test_no_pattern_is_larger_than_its_size(pattern: str) -> None:
    """With the memory that this size says, the engine can compile whatever it can compile at all."""
    states = states_of(pattern)
    assume(states < 20_000)
    most = RegexOptions(size_limit=2**23)
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=most)
    except Exception:  # noqa: BLE001 - no pattern for this engine: whatever it says
        assume(False)
    own = RegexOptions(size_limit=BYTES_OF_ANY + BYTES_A_STATE * states)
    assert Draft202012Validator({"pattern": pattern}, pattern_options=own)
    assert (checker._BYTES_OF_ANY, checker._BYTES_A_STATE) == (BYTES_OF_ANY, BYTES_A_STATE)


def test_every_pattern_of_a_document_counts() -> None:
    """Also of what nothing refers to: it is compiled, and thrown away."""
    schema = {"$defs": {"a": {"pattern": "ab"}}, "allOf": [{"patternProperties": {"abc": {"pattern": "."}}}]}

    assert sizes_in(schema) == PatternSizes(count=3, states=15, largest=10)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": r"\p{L}{16}"},
        {"pattern": r"\p{L}{100}N"},
        {"pattern": f"a{{{MOST_STATES + 1}}}"},
        {"$defs": {f"d{n}": {"pattern": rf"{n}\p{{L}}{{9}}"} for n in range(5)}},
        {"allOf": [{"pattern": "a"}] * 1_100},
    ],
)
def test_patterns_that_are_too_large_are_never_compiled(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find out that they are would take as long as for one that is not."""
    monkeypatch.setattr(checker, "_validator", pytest.fail)

    assert schema_fault(of(**schema)) == "its input schema is wrong: its patterns are too many, or too large"
