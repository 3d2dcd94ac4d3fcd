"""Finding tools by words and tags: full text with BM25, over what a caller may use.

The index is SQLite's, in memory: of one set of tools, made when it is first asked for.
"""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schema import input_schema
from toolfleet_registry.verdicts import SeenTool

_MOST_WORDS = 32  # of a question; a model can write a book
_LONGEST = 1000  # characters of a question, and of one parameter's description
_LONGEST_TEXT = 20_000  # characters of a tool's description: more would be indexed for nobody
_PIECE = 100  # rows read at once, until enough of them are the caller's

_SCHEMA = "CREATE VIRTUAL TABLE tools USING fts5(name, tags, description, arguments, tokenize='porter unicode61')"
# A name says most, a tag nearly as much; arguments are about how, not what.
_ASK = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, 10, 6, 3, 1), rowid"


class ToolSearch:
    """An index of tools. May be used from several threads."""

    def __init__(self, tools: Iterable[SeenTool]) -> None:
        self._tools = sorted(tools, key=lambda tool: tool.definition.name)
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(_SCHEMA)
        rows = ((number, *_texts(tool.definition)) for number, tool in enumerate(self._tools))
        self._index.executemany("INSERT INTO tools(rowid, name, tags, description, arguments) VALUES(?,?,?,?,?)", rows)

    def find(
        self, text: str, *, may: Callable[[SeenTool], bool], tags: frozenset[str] = frozenset(), limit: int = 20
    ) -> list[SeenTool]:
        """At most `limit` tools that have a word of `text`, or the beginning of one, and all of `tags`; the best first.

        Without a word, those with the tags by name. `may` says which may be found.
        """
        wanted = {tag.casefold() for tag in tags}
        found = list[SeenTool]()
        for tool in self._matching(text):
            if wanted <= {tag.casefold() for tag in tool.definition.tags} and may(tool):
                found.append(tool)
                if len(found) >= limit:
                    break
        return found

    def close(self) -> None:
        """Let go of the index."""
        with self._lock:
            self._index.close()

    def _matching(self, text: str) -> Iterator[SeenTool]:
        words = _WORD.findall(_split(text[:_LONGEST]))[:_MOST_WORDS]
        if not words:
            if not text.strip():
                yield from self._tools
            return
        question = " OR ".join(f'"{word}"*' for word in words)
        with self._lock:  # one connection, and nobody else's rows among ours
            rows = self._index.execute(_ASK, (question,)).fetchall()
        for (number,) in rows:
            yield self._tools[number]


def _texts(tool: ToolDefinition) -> tuple[str, str, str, str]:
    properties = input_schema(tool).get("properties")
    arguments = properties.items() if isinstance(properties, dict) else ()
    told = (
        f"{name} {about.get('description', '') if isinstance(about, dict) else ''}"[:_LONGEST]
        for name, about in arguments
    )
    texts = (tool.name, " ".join(tool.tags), tool.description[:_LONGEST_TEXT], " ".join(told)[:_LONGEST_TEXT])
    name, tags, description, about = map(_split, texts)
    return name, tags, description, about


def _split(text: str) -> str:
    """With the parts of `camelCase` beside it, and without what no output can carry."""
    parts = _HUMP.sub(r"\1 \2", text)
    return (text if parts == text else f"{text} {parts}").encode("utf-8", "replace").decode()


_HUMP = re.compile(r"([a-z0-9])([A-Z])")
_WORD = re.compile(r"[^\W_]+")
