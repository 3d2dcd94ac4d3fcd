"""Makes error text from elsewhere fit for a model's prompt, a terminal and a log: short, nothing but text, and no token in it."""

import re

MAX_BYTES = 2000  # of UTF-8: enough for a message and the end of a traceback, little enough for a prompt


def readable(text: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The start of `text` without terminal escapes, invisible characters and signed tokens; newlines and tabs stay.

    At most `max_bytes` of UTF-8 and never half a character; an ellipsis shows that something is missing.
    """
    # One character is at least a byte; the factor leaves room for what is removed. Without it, 8 MiB would be searched.
    start = text[: max_bytes * _REMOVABLE]
    start = _LINE_END.sub("\n", _ESCAPE.sub("", start))
    start = _TOKEN.sub("[token]", _INVISIBLE.sub("", start)).strip()
    return _cut(start, max_bytes, was_cut=len(text) > max_bytes * _REMOVABLE)


def _cut(text: str, max_bytes: int, *, was_cut: bool) -> str:
    data = text.encode()
    if len(data) <= max_bytes and not was_cut:
        return text
    return data[: max_bytes - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


_ELLIPSIS = "…"
_REMOVABLE = 4
_LINE_END = re.compile("\r\n?|[\u2028\u2029]")
# ECMA-48, in this order: strings such as window titles and links, colours and cursor moves, and the short ones. Only
# where they begin with ESC: as single characters they are far more often broken quotation marks.
_ESCAPE = re.compile("\x1b[\\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b\\[[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?")
# A JSON Web Token, or the start of one: a module that quotes its request shows its `Toolfleet-Caller`. Started where a word
# begins and never given back, for a text of 8 kB may be one word.
_TOKEN = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++\.eyJ[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+)?")
# Control characters, what turns the direction of text, zero-width spaces, half surrogates, and the tag characters
# in which text can be hidden from people. The joiners U+200C and U+200D stay: words and emoji are made with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
