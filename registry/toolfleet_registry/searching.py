"""Searches by words and tags, in what agents hold and in what registries keep.

The index is SQLite's, in memory: of one set of things, made once.
"""

import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_MOST_WORDS = 32  # of a question; a model can write a book
_LONGEST = 1000  # characters of a question, and of one argument's description
_LONGEST_TEXT = 20_000  # characters of a description: more would not be searched for

_SCHEMA = "CREATE VIRTUAL TABLE tools USING fts5(name, tags, description, arguments, tokenize='porter unicode61')"
_FILL = "INSERT INTO tools(rowid, name, tags, description, arguments) VALUES(?,?,?,?,?)"
# A name says most, a tag nearly as much; arguments are about how, not what.
_ASK = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, 10, 6, 3, 1), rowid"

# They are in nearly every text: to look for them takes most of a search's time, and finds nothing more.
_COMMON = frozenset(
    "a an and are as at be by can do for from has have how i in is it its me my of on or our please so that the "
    "then there these this to up us want was we what when where which will with you your".split()
)
_HUMP = r"([a-z0-9])([A-Z])"
_WORD = r"[^\W_]+"


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """The searchable text of a tool. `arguments`: the description of each, by name."""

    name: str
    tags: Sequence[str]
    description: str
    arguments: Mapping[str, Any]

    def texts(self) -> tuple[str, str, str, str]:
        """Return the texts as they are indexed."""
        descriptions = (
            f"{name} {about.get('description', '') if isinstance(about, dict) else ''}"[:_LONGEST]
            for name, about in self.arguments.items()
        )
        about = " ".join(descriptions)[:_LONGEST_TEXT]
        name, tags, description, arguments = map(
            _split, (self.name, " ".join(self.tags), self.description[:_LONGEST_TEXT], about)
        )
        return name, tags, description, arguments


class TextIndex(Generic[T]):
    """An index of things, each with its document. May be used from several threads."""

    def __init__(self, things: Iterable[tuple[SearchDocument, T]]) -> None:
        import sqlite3  # of those who search

        self._things = sorted(things, key=lambda each: each[0].name)
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        # An index lives as long as a catalog's state does, which is never closed; Python 3.13 warns of an open database.
        weakref.finalize(self, self._index.close).atexit = False
        self._index.execute(_SCHEMA)
        rows = ((number, *document.texts()) for number, (document, _) in enumerate(self._things))
        self._index.executemany(_FILL, rows)

    def find(
        self, text: str, *, may: Callable[[T], bool], tags: frozenset[str] = frozenset(), limit: int = 20
    ) -> list[T]:
        """Return at most `limit` things that have a word of `text`, or the beginning of one, and all of `tags`; the best first.

        Without a word, those with the tags by name. `may` says which may be found.
        """
        wanted = {tag.casefold() for tag in tags}
        found = list[T]()
        for document, thing in self._matching(text):
            if wanted <= {tag.casefold() for tag in document.tags} and may(thing):
                found.append(thing)
                if len(found) >= limit:
                    break
        return found

    def close(self) -> None:
        """Let go of the index."""
        with self._lock:
            self._index.close()

    def _matching(self, text: str) -> Iterator[tuple[SearchDocument, T]]:
        said = re.findall(_WORD, _split(text[:_LONGEST]))
        words = ([word for word in said if word.casefold() not in _COMMON] or said)[:_MOST_WORDS]
        if not words:
            if not text.strip():
                yield from self._things
            return
        question = " OR ".join(f'"{word}"*' for word in words)
        with self._lock:  # one connection, and no rows of others among ours
            rows = self._index.execute(_ASK, (question,)).fetchall()
        for (number,) in rows:
            yield self._things[number]


def _split(text: str) -> str:
    """Add the parts of `camelCase` words, and remove characters that cannot be encoded."""
    parts = re.sub(_HUMP, r"\1 \2", text)
    return (text if parts == text else f"{text} {parts}").encode("utf-8", "replace").decode()
