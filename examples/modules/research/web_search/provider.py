"""What searches the web, as the tool sees it: any service, whose results it bounds."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from urllib.parse import urlsplit

MAX_TITLE_CHARS = 300
MAX_URL_CHARS = 2000
MAX_SNIPPET_CHARS = 600
MAX_BYTES = 2**16  # of all results of one search
_MAX_LOOKED_AT = 100  # however many of them are nothing


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that was found. The texts are the service's, and so strangers'."""

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """Searches the web with one service."""

    async def search(self, query: str) -> Iterable[WebResult]:
        """The service's results, the best first, as it gives them: nobody need have looked at them yet.

        Raises `ToolError`, with one sentence, in bounded time for whatever is no answer.
        """
        ...


def bounded(found: Iterable[WebResult], max_results: int) -> list[WebResult]:
    """Take at most `max_results` pages, each once and in readable text, and `MAX_BYTES` in all; leave out what is no web page."""
    results: dict[str, WebResult] = {}
    room = MAX_BYTES
    for one in islice(found, _MAX_LOOKED_AT):
        if len(results) == max_results:
            break
        if one.url in results or not _is_web_page(one.url):
            continue
        result = WebResult(plain(one.title, MAX_TITLE_CHARS) or one.url, one.url, plain(one.snippet, MAX_SNIPPET_CHARS))
        room -= sum(len(text.encode()) for text in (result.title, result.url, result.snippet))
        if room < 0:
            break
        results[one.url] = result
    return list(results.values())


def plain(text: str, most: int) -> str:
    """Put a text on one line, without what cannot be seen, and cut it at `most` characters."""
    words = "".join(char if char.isprintable() else " " for char in text[: 4 * most]).split()
    line = " ".join(words)
    return line if len(line) <= most else line[: most - 1] + "…"


def _is_web_page(url: str) -> bool:
    if len(url) > MAX_URL_CHARS or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
