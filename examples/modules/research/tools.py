"""The tools of `research`."""

import asyncio
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from modules.documents import read_documents
from modules.research.addresses import is_public
from modules.research.docs_index import DocsIndex
from modules.research.fetch import PageFetcher, Unreached
from modules.research.json_field import field_of
from modules.research.page import readable
from modules.research.settings import ResearchSettings
from modules.research.web_search import SearchProvider, bounded, plain, provider_of
from toolfleet.sdk import ToolError

_QUERY_CHARS = 400
_NO_PROVIDER = "No web search is set up here: RESEARCH_SEARCH_URL must name a search service, such as a SearXNG's http://searxng:8080."


@dataclass(frozen=True, slots=True)
class Research:
    """Web pages, what searches for them, and the documentation as it was when the module started."""

    fetcher: PageFetcher
    index: DocsIndex
    provider: SearchProvider | None

    @classmethod
    def of(cls, settings: ResearchSettings) -> "Research":
        """Read and index the documentation."""
        fetcher = PageFetcher(
            may_connect=(lambda _: True) if settings.allow_private else is_public,
            seconds=settings.fetch_seconds,
            max_bytes=settings.page_bytes,
        )
        return cls(fetcher, DocsIndex(read_documents(settings.docs_root)), provider_of(settings))

    async def fetch_webpage(
        self, url: str, max_chars: Annotated[int, Field(ge=1, le=100_000)] = 8000
    ) -> dict[str, Any]:
        """Fetch a public web page and return its title and readable text.

        Args:
            url: An http or https address.
            max_chars: How much text to return, in characters.
        """
        page = await self.fetcher.fetch(url)
        title, text = await asyncio.to_thread(readable, page)
        return {
            "url": page.url,
            "title": title,
            "text": text[:max_chars],
            "truncated": page.truncated or len(text) > max_chars,
        }

    async def check_url(
        self, url: str, field: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    ) -> dict[str, Any]:
        """Ask a public address how it answers: its status and, of JSON, one field. Where nobody answers the status is 0.

        Args:
            url: An http or https address.
            field: Where the value stands in the JSON that is there, such as a.b.0.
        """
        try:
            page = await self.fetcher.fetch(url, any_status=True)
        except Unreached as exc:
            return {"url": url, "status": 0, "error": str(exc)}
        told = {"url": page.url, "status": page.status}
        return told if field is None else {**told, "value": await asyncio.to_thread(field_of, page, field)}

    async def web_search(
        self,
        query: Annotated[str, Field(min_length=1, max_length=_QUERY_CHARS)],
        max_results: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> dict[str, Any]:
        """Search the web. Returns the best pages, each with its title, url and a snippet; fetch_webpage reads one.

        Args:
            query: What to look for, such as 'barn owl habitat'.
            max_results: How many pages to return.
        """
        if self.provider is None:
            raise ToolError(_NO_PROVIDER, effect_state="none")
        if not (words := plain(query, _QUERY_CHARS)):
            raise ToolError("There is nothing to look for: the query has no words.", effect_state="none")
        found = await self.provider.search(words)
        return {"query": query, "results": [asdict(result) for result in bounded(found, max_results)]}

    def search_docs(
        self,
        query: Annotated[str, Field(max_length=1000)],
        max_results: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> dict[str, Any]:
        """Search this project's documentation for words. Returns the best passages, each with its file, heading and line.

        Args:
            query: The words to look for, such as 'retry after timeout'.
            max_results: How many passages to return.
        """
        passages = self.index.search(query, max_results)
        return {"query": query, "results": [asdict(passage) for passage in passages]}
