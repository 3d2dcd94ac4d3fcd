"""What becomes of personal data in JSON values, and patterns of operators."""

import asyncio
import json
import math
from typing import Any

import pytest

from toolfleet_registry.errors import PersonalDataBlocked
from toolfleet_registry.personal_data.findings import Strategy
from toolfleet_registry.personal_data.personal_data import DEEPEST, PersonalData

KEY = b"sixteen bytes or more"
CARD = 4111_1111_1111_1111


def test_what_has_none_is_the_same_object() -> None:
    """Nothing is copied where nothing is found, and nothing is counted."""
    value: dict[str, Any] = {"a": [1, 2.5, True, None, "owls"], "b": {"c": (), "d": {}}, "e": math.inf}
    hidden = PersonalData().hide(value)

    assert hidden.value is value
    assert hidden.counts == {}


def test_every_place_of_a_value_is_looked_at() -> None:
    """Texts in lists and objects, names of members, and numbers; the rest stays, in its order, and the input as it was."""
    value = {
        "to": ["bob@example.com", {"x": "no"}],
        "bob@example.com": {"card": CARD, "n": 7, "f": float(CARD)},
        "z": 1,
    }
    before = json.dumps(value)
    hidden = PersonalData().hide(value)

    assert hidden.value == {
        "to": ["[EMAIL]", {"x": "no"}],
        "[EMAIL]": {"card": "[CREDIT_CARD]", "n": 7, "f": "[CREDIT_CARD]"},
        "z": 1,
    }
    assert list(hidden.value) == ["to", "[EMAIL]", "z"]
    assert hidden.counts == {"email": 2, "credit_card": 2}
    assert json.dumps(value) == before


def test_two_names_that_are_hidden_stay_two() -> None:
    """No member is lost where two names become the same, or the same as one that was there."""
    value = {"a@example.com": 1, "[EMAIL]": 2, "b@example.com": 3, "c": 4}

    assert PersonalData().hide(value).value == {"[EMAIL][SAME_2]": 1, "[EMAIL]": 2, "[EMAIL][SAME_3]": 3, "c": 4}


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("redact", "[EMAIL] [PHONE] [CREDIT_CARD] [IBAN] [IP] [MAC_ADDRESS] [URL]"),
        ("mask", "a***@***.uk ****2671 ****1111 ****3000 [IP] [MAC_ADDRESS] [URL]"),
    ],
)
def test_a_strategy_says_what_is_left(strategy: Strategy, text: str) -> None:
    """A label; or the ends of what has harmless ends."""
    value = (
        "anna@example.co.uk +1 415 555 2671, 4111-1111-1111-1111, DE89 3704 0044 0532 0130 00, 192.0.2.1 00:1a:2b:3c:4d:5e "
        "https://example.com/x"
    )

    assert PersonalData(strategy=strategy).hide(value).value.replace(",", "") == text


def test_a_hash_is_of_the_value_and_not_of_its_spelling() -> None:
    """The same for the same value under the same key, whoever computes it; and another under another key, or of another kind."""
    data, other = PersonalData(strategy="hash", key=KEY), PersonalData(strategy="hash", key=KEY + b".")
    spellings = [
        ("+49 30 1234567", "(030) 1234567"),
        ("4111111111111111", "4111-1111-1111-1111"),
        ("Bob@Example.com", "bob@example.com"),
        ("2001:DB8::1", "2001:0db8:0:0:0:0:0:1"),
        ("00:1A:2b:3c:4d:5e", "001a.2b3c.4d5e"),
        ("GB29 NWBK 6016 1331 9268 19", "gb29nwbk60161331926819"),
    ]
    hashed = [(data.hide(one).value, data.hide(two).value) for one, two in spellings]

    assert [one for one, _ in hashed] == [two for _, two in hashed]
    assert len({one for one, _ in hashed}) == len(spellings)
    assert data.hide("bob@example.com").value == "[email:80bdd02e5a2f3a74]"
    assert other.hide("bob@example.com").value != data.hide("bob@example.com").value


@pytest.mark.parametrize("key", [None, b"", b"fifteen bytes.."])
def test_a_hash_needs_a_key(key: bytes | None) -> None:
    """One that somebody could guess is refused when the object is made."""
    with pytest.raises(ValueError, match=r"The strategy 'hash' needs a key of at least 16 bytes\."):
        PersonalData(strategy="hash", key=key)


@pytest.mark.parametrize(
    ("value", "kind", "pointer", "is_name"),
    [
        ({"a/b": [0, {"~": "call bob@example.com"}]}, "email", "/a~1b/1/~0", False),
        ({"to": {"bob@example.com": 1}}, "email", "/to", True),
        ({"n": [CARD]}, "credit_card", "/n/0", False),
        ("192.0.2.1", "ip", "", False),
        ([b"bytes"], "not_searched", "/0", False),
    ],
)
def test_block_names_place_and_kind_and_never_the_value(value: Any, kind: str, pointer: str, *, is_name: bool) -> None:
    """The first place is named; where a member's name is the value, what holds it is."""
    with pytest.raises(PersonalDataBlocked) as raised:
        PersonalData(strategy="block").hide(value)

    assert (raised.value.kind, raised.value.pointer, raised.value.is_name) == (kind, pointer, is_name)
    assert kind in str(raised.value)
    assert "bob" not in f"{raised.value!s} {raised.value!r} {raised.value.args}"


def test_what_is_too_deep_or_no_json_is_hidden_unseen() -> None:
    """Nothing passes because it cannot be looked at."""
    deep: Any = "bob@example.com"
    for _ in range(DEEPEST + 50):
        deep = [deep]
    hidden = PersonalData().hide({"deep": deep, "bytes": b"x", "long": 10**5000, "ok": 1})

    assert "bob" not in repr(hidden.value)
    assert (hidden.value["bytes"], hidden.value["long"], hidden.value["ok"]) == ("[NOT_SEARCHED]", "[NOT_SEARCHED]", 1)
    assert hidden.counts == {"not_searched": 3}


def test_what_overlaps_leaves_no_part_beside_its_label() -> None:
    """Several findings that overlap are one place, and no part of it is taken for harmless."""
    data = PersonalData(["email"], {"ticket": r"T\d{3} bob"}, "mask")

    assert data.hide("see T123 bob@example.com").value == "see [EMAIL]"


async def test_a_large_value_does_not_hold_the_loop() -> None:
    """It is hidden in a thread, while the loop goes on; the outcome is the same."""
    value = {"rows": [{"n": number, "text": "owls are late", "to": "bob@example.com"} for number in range(2_000)]}
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    hidden = await PersonalData().hide_aside(value, size=len(json.dumps(value)))
    ticking.cancel()

    assert hidden.counts == {"email": 2_000}
    assert ticks > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"types": ["mail"]}, "'mail' is no type of personal data: iban, "),
        ({"types": []}, "Neither types nor patterns of personal data are named."),
        ({"strategy": "hide"}, "'hide' is no strategy: redact, mask, hash, block are."),
    ],
)
def test_wrong_options_are_refused_at_once(arguments: Any, message: str) -> None:
    """In one sentence, when the object is made."""
    with pytest.raises(ValueError, match=message):
        PersonalData(**arguments)


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
