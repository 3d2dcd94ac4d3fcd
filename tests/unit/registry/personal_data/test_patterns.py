"""Patterns of operators: what is refused at load, and what the others find."""

import pytest

from toolfleet_registry.personal_data.personal_data import PersonalData


@pytest.mark.parametrize(
    ("name", "pattern", "message"),
    [
        ("e", "(", r"The pattern 'e' is refused: its pattern cannot be matched in linear time: missing \)"),
        ("e", r"(a)\1", "cannot be matched in linear time: invalid escape sequence"),
        ("e", "(?=a)b", "cannot be matched in linear time: invalid perl operator"),
        ("e", "", "it must have 1 to 1000 characters"),
        ("e", "a" * 1001, "it must have 1 to 1000 characters"),
        ("e", "a\n", "it has characters that cannot be printed"),
        ("e", "E-[0-9]+", r"it has '\+', with which a match has no longest length"),
        ("e", "E-.*", r"it has '\*'"),
        ("e", "E-[0-9]{3,}", r"it has '\{3,\}'"),
        ("e", r"\Aa", r"it has '\\\\A'"),
        ("e", "(?-m)^a", r"it has '\(\?-m\)'"),
        ("e", r"\pL{1,5}", "it is too large: it has [0-9]+ steps, of which 1000 may be"),
        ("e", "(?:(?:a{1,30}){1,30}){1,30}", "it is too large|cannot be matched in linear time"),
        ("e", "a?", "it matches the empty text, which is everywhere"),
        ("e", r"\b", "it matches the empty text"),
        ("e", "^|x", "it matches the empty text"),
        ("email", "a", "The pattern 'email' needs another name"),
        ("not_searched", "a", "needs another name"),
        ("E", "a", "needs another name"),
        ("x" * 33, "a", "needs another name"),
    ],
)
def test_a_pattern_is_refused_in_one_sentence(name: str, pattern: str, message: str) -> None:
    """It names the pattern, and says what it must be."""
    with pytest.raises(ValueError, match=message) as raised:
        PersonalData([], {name: pattern})

    assert str(raised.value).count("\n") == 0


@pytest.mark.parametrize("pattern", [r"E-[0-9*+]{6}", r"\Qa+b*\E", r"a\+", "[]*]x", "[[:digit:]+]{2}", r"\x{1F600}"])
def test_signs_that_repeat_nothing_are_taken(pattern: str) -> None:
    """In brackets, quoted or escaped they are themselves."""
    assert PersonalData([], {"own": pattern}).find("owls") == []


def test_there_may_be_fifty() -> None:
    """One more is refused."""
    with pytest.raises(ValueError, match=r"There are 51 patterns of personal data; 50 may be\."):
        PersonalData([], {f"p{number}": "abc" for number in range(51)})


def test_places_are_in_characters() -> None:
    """Also behind letters of several bytes, lone surrogates, and in the second of several texts."""
    data = PersonalData([], {"employee": r"\bE-\d{3}\b"})
    text = "é漢\ud800 E-123, 😀E-456"

    assert [text[each.start : each.end] for each in data.find(text)] == ["E-123", "E-456"]
    assert data.hide(["é", text, "E-789"]).value == ["é", "é漢\ud800 [EMPLOYEE], 😀[EMPLOYEE]", "[EMPLOYEE]"]


def test_each_text_is_looked_at_by_itself() -> None:
    """`^` and `$` are its ends, and those of its lines; no match goes from one text to the next."""
    data = PersonalData([], {"code": r"^[a-z\s]{4}$"})

    assert data.hide(["ab", "cd", "abcd", "x\nefgh"]).value == ["ab", "cd", "[CODE]", "x\n[CODE]"]


def test_numbers_are_texts_to_patterns() -> None:
    """Short ones and fractions too."""
    data = PersonalData([], {"pin": r"\b\d{4}\b"})

    assert data.hide({"n": 1234, "f": 2.5, "t": True, "x": 12345}).value == {
        "n": "[PIN]",
        "f": 2.5,
        "t": True,
        "x": 12345,
    }


def test_a_label_is_no_text_to_patterns() -> None:
    """What hides something stays, though a pattern fits it; and the operator's kind counts at the same place."""
    data = PersonalData(["ip"], {"word": r"[A-Z]{2,12}", "host": r"10\.0\.0\.\d"})
    hidden = data.hide("AB at 10.0.0.7").value

    assert hidden == "[WORD] at [HOST]"
    assert data.hide(hidden).value == hidden
