"""The text of an API key."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.access.key_text import new_key_text, read_key_text


def test_a_key_looks_like_one() -> None:
    """Scanners find it by a pattern; no two are alike, and the secret has 256 bits at least."""
    texts = {new_key_text().text for _ in range(100)}

    assert len(texts) == 100
    assert all(re.fullmatch(r"tfk_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}", text) for text in texts)
    assert 43 * math.log2(62) >= 256


def test_a_key_is_read_as_it_was_made() -> None:
    """And its repr, which logs show, has no secret."""
    made = new_key_text()

    assert read_key_text(made.text) == made
    assert made.text not in repr(made)
    assert made.has_digest(made.digest)
    assert not new_key_text().has_digest(made.digest)


@given(place=st.integers(0, 65), digit=st.sampled_from("0Aaz9_ é"))
def test_a_mistyped_key_is_none(place: int, digit: str) -> None:
    """The checksum tells, without a question to a store."""
    text = new_key_text().text
    other = text[:place] + digit + text[place + 1 :]

    assert (read_key_text(other) is None) == (other != text)


@given(st.text(max_size=80))
def test_any_other_text_is_none(text: str) -> None:
    """Whatever is in it."""
    assert read_key_text(text) is None
