"""A signature is worth something for one call, one purpose and one text."""

import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.contracts.call_context import Progress
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_registry.signing import derived_key
from toolfleet_tasks.messages.signing import Seal, Signatures, after_json, module_keys, seal_of, split_json

KEY = "0123456789abcdef0123456789abcdef"
OTHER = "another key of thirty-two characters"
SIGNED = Settings(signing_key=KEY)
RESULTS = Signatures(SIGNED, "result")


def test_a_text_that_was_signed_is_verified() -> None:
    """Half a character, of which no signer knows, included."""
    for text in ("", "hoot", "🦉\ud800 \u2028", "a" * 300_000):
        assert RESULTS.verify("call-1", text, RESULTS.of("call-1", text))


def test_it_is_an_hmac_over_the_calls_id_and_the_text() -> None:
    """Under a key that is derived for this purpose alone."""
    expected = hmac.digest(derived_key(KEY, "result"), b"6 call-1 hoot", "sha256").hex()

    assert RESULTS.of("call-1", "hoot") == expected


@pytest.mark.parametrize(
    ("call_id", "text", "signature"),
    [
        ("call-2", "hoot", RESULTS.of("call-1", "hoot")),
        ("call-1", "boot", RESULTS.of("call-1", "hoot")),
        ("call-1", "x hoot", RESULTS.of("call-1 x", "hoot")),  # where the id ends is signed, too
        ("call-1", "hoot", Signatures(SIGNED, "progress").of("call-1", "hoot")),
        ("call-1", "hoot", Signatures(SIGNED, "attempt").of("call-1", "hoot")),
        ("call-1", "hoot", Signatures(Settings(signing_key=OTHER), "result").of("call-1", "hoot")),
        ("call-1", "hoot", RESULTS.of("call-1", "hoot")[:-1]),
        ("call-1", "hoot", Seal(KEY, purpose="dead letter").sign("hoot")),
        ("call-1", "hoot", ""),
        ("call-1", "hoot", "🦉"),
        ("call-1", "hoot", 7),
        ("call-1", "hoot", None),
    ],
)
def test_anything_else_is_not(call_id: str, text: str, signature: object) -> None:
    """Another call's, another text's, another purpose's, another key's; and what is no signature."""
    assert not RESULTS.verify(call_id, text, signature)


def test_without_a_key_nothing_is_signed_and_nothing_verified() -> None:
    """Not a byte is added."""
    for settings in (None, Settings()):
        assert Signatures(settings, "result").of("call-1", "hoot") == ""
        assert not Signatures(settings, "result").verify("call-1", "hoot", "")


def test_an_old_key_verifies_and_never_signs() -> None:
    """So that a fleet can go from one key to the next, process by process."""
    both = Settings(signing_key=KEY, signing_keys_old=(OTHER,))
    old, new = Settings(signing_key=OTHER), Settings(signing_key=KEY)

    assert Signatures(both, "result").of("c", "hoot") == Signatures(new, "result").of("c", "hoot")
    for settings in (old, new):
        assert Signatures(both, "result").verify("c", "hoot", Signatures(settings, "result").of("c", "hoot"))
        assert seal_of(both, purpose="job").read(seal_of(settings, purpose="job").sign("hoot")) == "hoot"
    assert not Signatures(old, "result").verify("c", "hoot", Signatures(both, "result").of("c", "hoot"))
    assert module_keys(both.signing_keys, "owls").split(",") == [
        module_keys([KEY], "owls"),
        module_keys([OTHER], "owls"),
    ]


def test_a_module_has_a_key_of_no_other_purpose() -> None:
    """Whatever the module is called."""
    purposes = {module_keys([KEY], "result"), module_keys([KEY], "call")}

    assert purposes.isdisjoint({derived_key(KEY, "result").hex(), derived_key(KEY, "call").hex()})
    assert derived_key(KEY, "module result") != derived_key(KEY, "result")


@given(st.none() | st.floats(0, 1), st.text(st.characters(exclude_categories=["Cs"]), max_size=500))
def test_a_signature_behind_json_is_blank_to_its_readers(fraction: float | None, message: str) -> None:
    """They find the JSON as it was; who knows of it finds both."""
    text = json.dumps(Progress(fraction=fraction, message=message).model_dump())
    signature = RESULTS.of("call-1", text)
    written = after_json(text, signature)

    assert Progress.model_validate_json(written) == Progress.model_validate_json(text)
    assert split_json(written) == (text, signature)
    assert split_json(text) == (text, None)


@given(st.text())
def test_what_was_never_signed_is_split_somehow(content: str) -> None:
    """Whatever somebody writes."""
    text, signature = split_json(content)

    assert content.startswith(text)
    assert signature is None or set(signature) <= set("0123456789abcdef")


@pytest.mark.parametrize("value", [f"{KEY},{OTHER}", f" {KEY} , {OTHER} ,", json.dumps([KEY, OTHER])])
def test_old_keys_are_read_from_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With commas between them, or as JSON, for keys with commas."""
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEY", "a third key of thirty-two characters")
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEYS_OLD", value)

    assert load_settings().signing_keys[1:] == (KEY, OTHER)


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"signing_key": KEY, "signing_keys_old": ("short and secret",)}, "at least 32 characters"),
        ({"signing_key": KEY, "signing_keys_old": ("x" * 40,)}, "must be random"),
        ({"signing_keys_old": (KEY,)}, "need TOOLFLEET_SIGNING_KEY"),
        ({"require_signed_results": True}, "need TOOLFLEET_SIGNING_KEY"),
    ],
)
def test_wrong_keys_are_one_sentence_that_shows_none(settings: dict[str, object], subject: str) -> None:
    """At start, and without the key in it."""
    with pytest.raises(SettingsError, match=subject) as raised:
        load_settings(**settings)

    assert "short and secret" not in str(raised.value)
    assert KEY not in str(raised.value)
