"""Finds URLs: what has a scheme, `://` and a host, and what begins with `www.`."""

import re
from collections.abc import Iterator

from toolfleet_registry.personal_data.detectors.scan import scanner
from toolfleet_registry.personal_data.found import FoundData
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


class UrlDetector:
    """Finds URLs, from the scheme to the end of path, query and fragment, with user, password, port and a host in brackets.

    Not part of it: punctuation at its end, a bracket or quote that was opened before it, and words after it in
    languages without blanks. A host alone (`example.com`) is none: it may be a file or a method.
    """

    def __init__(self) -> None:
        self._scanner = scanner(r"(?i)(?:[a-z][a-z0-9+.-]*://|\bwww\.)[^\x00-\x20\"<>`{}|^\\\x7f]+")

    def find(self, texts: SearchedTexts) -> Iterator[FoundData]:
        """Yield each URL, without the rest of its sentence."""
        if b"://" not in texts.data and b"www." not in texts.data.lower():
            return
        plain = texts.plain
        for match in self._scanner.finditer(texts.data):
            position, end = match.start(), match.end()
            position = max(position, plain.find("://", position, end) - _LONGEST_SCHEME)
            while position < end:  # several may follow one another without a blank
                written = _WRITTEN.match(plain, position, end)
                if written is None:
                    break
                start, stop = written.start(1), _end(plain, written)
                yield FoundData("url", start, stop)
                position = max(written.end(), stop)


def _end(plain: str, written: re.Match[str]) -> int:
    start, end = written.start(1), written.end()
    before = plain[start - 1 : start]
    if before in _AROUND and (after := plain.find(before, start, end)) >= 0:
        end = after
    if (words := _WORDS.search(plain, written.start("host"), end)) is not None:
        end = words.start() + 1
    while end > start and (plain[end - 1] in ".,;:!?'*\"…" or _is_closing(plain, start, end)):
        end -= 1
    return end


def _is_closing(plain: str, start: int, end: int) -> bool:
    """Return whether the last character closes a bracket that was opened before the URL."""
    opening = _OPENING.get(plain[end - 1])
    if opening is None or end - start > _LONGEST_COUNTED:
        return opening is not None and end - start > _LONGEST_COUNTED
    return plain.count(opening, start, end) < plain.count(plain[end - 1], start, end)


_AROUND = {"'", ",", ";"}  # a quote, or what parts the columns of a table
_LONGEST_SCHEME = 16
_OPENING = {")": "(", "]": "["}
_LONGEST_COUNTED = 4_000  # characters: brackets are counted again for each that stands at the end
_DENSE = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_NO_PART = (
    r"\s\"<>`{}|^\\\u3000-\u3003\u3008-\u3020\uff01-\uff0c\uff0e\uff1a-\uff1f\uff3b-\uff3d\uff5b-\uff65\u2018-\u201f«»"
)
_HOST = rf"(?:\[[0-9A-Fa-f:.%]+\]|(?:[0-9A-Za-z_-]|[^\W\x00-\x7f])[^{_NO_PART}/?#\[\]()@,;:!'*$&=+~]*)"
# A scheme has letters before it only where it is none, and a second URL begins behind a comma at most.
_WRITTEN = re.compile(
    rf"[^a-zA-Z]?((?:[a-zA-Z][a-zA-Z0-9+.-]{{1,15}}://(?:[^{_NO_PART}/?#@\[\]]{{1,200}}@)?|www\.)(?P<host>{_HOST})"
    rf"(?::\d{{1,5}})?(?:[/?#](?:(?![,;][a-zA-Z][a-zA-Z+]{{1,9}}://)[^{_NO_PART}])*)?)",
    re.IGNORECASE,
)
_WORDS = re.compile(rf"[0-9A-Za-z](?=[{_DENSE}])")
