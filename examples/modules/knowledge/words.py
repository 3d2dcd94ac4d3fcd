"""Cuts texts into the words that a search compares: the same ones for every database, which never sees what a model wrote."""

import re
import unicodedata
from collections.abc import Collection

# Chinese and Japanese have no spaces: each of their characters is a word.
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(f"[{_ALONE}]|[^\\W_{_ALONE}]+")
_SHORT = 3  # characters: a shorter word is no beginning of others, or `a` would find everything
_MOST_WORDS = 32
_MOST_CHARS = 64  # of a word

_EXCERPT_CHARS = 300
_BEFORE_CHARS = 80


def words_of(text: str) -> list[str]:
    """The words, in their order, without accents and capitals; of an endless one its beginning."""
    return [word[:_MOST_CHARS] for word in _WORD.findall(_plain(text))]


def wanted_words(query: str) -> list[str]:
    """The words that a query asks for, each once; of very many the first ones."""
    return list(dict.fromkeys(words_of(query)))[:_MOST_WORDS]


def is_beginning(word: str) -> bool:
    """Whether a wanted word also finds longer ones that begin with it."""
    return len(word) >= _SHORT


def excerpt(text: str, wanted: Collection[str]) -> str:
    """The part of a text around the first wanted word in it; its beginning if there is none."""
    found = next((match.start() for match in _WORD.finditer(text) if _is_wanted(match[0], wanted)), 0)
    start = max(0, found - _BEFORE_CHARS)
    end = start + _EXCERPT_CHARS
    return f"{'…' if start else ''}{text[start:end].strip()}{'…' if end < len(text) else ''}"


def _is_wanted(written: str, wanted: Collection[str]) -> bool:
    return any(
        word == each or (is_beginning(each) and word.startswith(each)) for word in words_of(written) for each in wanted
    )


def _plain(text: str) -> str:
    spread = unicodedata.normalize("NFKD", text)
    return "".join(char for char in spread if unicodedata.category(char) != "Mn").casefold()
