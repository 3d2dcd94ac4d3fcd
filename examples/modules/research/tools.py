"""The tools of `research`."""

import asyncio
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from modules.documents import read_documents
from modules.research.addresses import is_public
from modules.research.docs_index import DocsIndex
from modules.research.fetch import PageFetcher
from modules.research.page import readable
from modules.research.settings import ResearchSettings


@dataclass(frozen=True, slots=True)
class Research:
    """Web pages, and the documentation as it was when the module started."""

    fetcher: PageFetcher
    index: DocsIndex

    @classmethod
    def of(cls, settings: ResearchSettings) -> "Research":
        """Read and index the documentation."""
        fetcher = PageFetcher(
            may_connect=(lambda _: True) if settings.allow_private else is_public,
            seconds=settings.fetch_seconds,
            max_bytes=settings.page_bytes,
        )
        return cls(fetcher, DocsIndex(read_documents(settings.docs_root)))

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
