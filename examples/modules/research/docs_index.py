"""Full-text search over documents: SQLite's FTS5, in memory, one row a section."""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from modules.documents import Document, sections

_MAX_WORDS = 16
_SNIPPET_TOKENS = 48  # FTS5 takes up to 64
_WORD = re.compile(r"\w+")
# A word in a heading or a path says more than one in the text; bm25 counts lower as better.
_SEARCH = f"""
    SELECT path, heading, line, snippet(passages, 2, '', '', ' … ', {_SNIPPET_TOKENS}), -bm25(passages, 2, 4, 1)
    FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, 2, 4, 1), path, line LIMIT ?
"""  # noqa: S608 - the number is ours


@dataclass(frozen=True, slots=True)
class Passage:
    """A section that matched. `score`: higher is better, and comparable within one search only."""

    path: str
    heading: str
    line: int
    snippet: str
    score: float


class DocsIndex:
    """The documents given at the start. May be used from any thread."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._lock = Lock()
        self._rows = sqlite3.connect(":memory:", check_same_thread=False)
        self._rows.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(path, heading, text, line UNINDEXED, tokenize='porter unicode61')"
        )
        self._rows.executemany(
            "INSERT INTO passages (path, heading, text, line) VALUES (?, ?, ?, ?)",
            [
                (document.path, section.heading, section.text, section.line)
                for document in documents
                for section in sections(document.text)
            ],
        )

    def search(self, query: str, max_results: int) -> list[Passage]:
        """The best passages with all the words of `query`, or if there are none, with any of them."""
        # In quotes a word is only a word: nothing in the query is taken for FTS5's own language.
        words = [f'"{word}"' for word in _WORD.findall(query)[:_MAX_WORDS]]
        return self._match(" AND ".join(words), max_results) or self._match(" OR ".join(words), max_results)

    def _match(self, expression: str, max_results: int) -> list[Passage]:
        if not expression:
            return []
        with self._lock:
            rows = self._rows.execute(_SEARCH, (expression, max_results)).fetchall()
        return [Passage(path, heading, line, snippet, round(score, 3)) for path, heading, line, snippet, score in rows]
