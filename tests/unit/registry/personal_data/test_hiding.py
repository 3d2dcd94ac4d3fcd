"""What becomes of personal data in JSON values: hidden at each place, and everything else as it was."""

import asyncio
import json
import math
from typing import Any

import pytest

from toolfleet_registry.errors import PersonalDataBlocked
from toolfleet_registry.personal_data.json_leaves import DEEPEST
from toolfleet_registry.personal_data.personal_data import PersonalData
from toolfleet_registry.personal_data.strategies import Strategy

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
            await asyncio.sleep(0.001)

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
