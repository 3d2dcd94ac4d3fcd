"""Error text from elsewhere: how much of it is kept, and what is taken out."""

import pytest

from toolfleet_workers.runner import MAX_BYTES, readable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("line\n\ttab", "line\n\ttab"),  # a traceback stays readable
        ("a\r\nb\rc\u2028d\u2029e", "a\nb\nc\nd\ne"),  # one kind of line end
        ("  \n padded \n ", "padded"),
        ("\x1b[1;31mred\x1b[0m", "red"),  # colours
        ("\x1b[2J\x1b[Hgone", "gone"),  # a cleared screen
        ("\x1b]0;title\x07text", "text"),  # a window title
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),  # a link, of which the words stay
        ("\x1b]never ended", "never ended"),
        ("\x1b(Bcharset\x1bc", "charset"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("nul\x00 bell\x07 back\x08 del\x7f", "nul bell back del"),
        ("\x9b31mc1\x85", "31mc1"),
        ("â\x80\x9d", "â"),  # a broken quotation mark does not swallow what follows
        ("abc\u202edef\u2066g\u200e", "abcdefg"),  # direction turned
        ("zero\u200bwidth\ufeff\xad", "zerowidth"),
        ("tag\U000e0041\U000e007f", "tag"),  # text that people do not see
        ("half\ud83d", "half"),
        ("Toolfleet-Caller: eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJ0In0.c2ln, gone", "Toolfleet-Caller: [token], gone"),
        ("'eyJhbGci\u200bOiJIUzI1NiJ9.eyJpc3MiOiJ0In0.c2ln'", "'[token]'"),
        ("a picture: eyJhIjoxfQ==", "a picture: eyJhIjoxfQ=="),  # some JSON as base64 is no token
        ("👩‍🔬 می‌خواهم", "👩‍🔬 می‌خواهم"),  # joiners make emoji and words
        ("", ""),
    ],
)
def test_what_is_not_text_is_taken_out(text: str, expected: str) -> None:
    """Terminal escapes and invisible characters go; words, newlines and tabs stay."""
    assert readable(text) == expected


@pytest.mark.parametrize("character", ["a", "ä", "€", "🦉"])
@pytest.mark.parametrize("extra", [0, 1, 2, 3, 5, 100_000])
def test_the_limit_holds_in_bytes_and_cuts_no_character(character: str, extra: int) -> None:
    """At most the limit of UTF-8, whole characters, and an ellipsis where something is missing."""
    text = "x" + character * (MAX_BYTES // len(character.encode()) - 1 + extra) + "x"
    cleaned = readable(text)

    assert len(cleaned.encode()) <= MAX_BYTES
    assert len(cleaned.encode()) > MAX_BYTES - 8
    assert text.startswith(cleaned.removesuffix("…"))
    assert cleaned.endswith("…") is (cleaned != text)


def test_no_part_of_a_token_is_left_where_a_text_is_cut() -> None:
    """Whether the limit falls into the token, or what is looked at ends there."""
    token = "eyJhbGciOiJIUzI1NiJ9.eyJ" + "a" * 400 + ".sig"
    for before in range(MAX_BYTES - 450, MAX_BYTES + 10, 7):
        assert "aaa" not in readable("x" * before + token)
    for before in range(4 * MAX_BYTES - 450, 4 * MAX_BYTES + 10, 7):
        assert "aaa" not in readable("\x1b[31m" * (before // 5) + token)


def test_many_beginnings_of_tokens_are_no_work() -> None:
    """A module may write what it likes."""
    assert readable("eyJ" * 5_000).endswith("…")


def test_a_text_of_exactly_the_limit_is_whole() -> None:
    """No ellipsis where nothing is missing."""
    assert readable("x" * MAX_BYTES) == "x" * MAX_BYTES


def test_a_text_of_escapes_alone_is_not_searched_to_its_end() -> None:
    """What is looked at is bounded, too: megabytes of escapes in front of the words hide the words."""
    assert readable("\x1b[31m" * 10_000_000 + "words") == "…"
