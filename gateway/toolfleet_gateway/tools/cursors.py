"""Reads and writes where a page of tools ends: behind a name, or in a search after so many."""

import base64
import binascii
from dataclasses import dataclass

from toolfleet_gateway.http.problems import invalid_request

_LONGEST = 512  # characters of a cursor: a tool's name has 256 at most
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Cursor:
    """`after`: the last tool's name of the page before; `offset`: how many of a search were on pages before. One of them."""

    after: str = ""
    offset: int = 0

    def text(self) -> str:
        """As clients get it."""
        return base64.urlsafe_b64encode(f"{self.offset}:{self.after}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> Cursor:
    """The place that a client goes on from. Raises `Problem` (400) for what no gateway has given it."""
    if text is None:
        return Cursor()
    cursor = _read(text) if len(text) <= _LONGEST else None
    if cursor is None or cursor.text() != text:
        raise invalid_request("The cursor is none: send the `next` of an answer as it is.")
    return cursor


def _read(text: str) -> Cursor | None:
    try:
        offset, _, after = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(":")
    except (ValueError, binascii.Error):
        return None
    return Cursor(after, int(offset)) if offset.isascii() and offset.isdigit() and len(offset) <= _DIGITS else None
