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
        self, *, url: str, max_chars: Annotated[int, Field(ge=1, le=100_000)] = 8000
    ) -> dict[str, Any]:
        """Fetch a page; what is not text is refused."""
        page = await self.fetcher.fetch(url)
        title, text = await asyncio.to_thread(readable, page)
        return {
            "url": page.url,
            "title": title,
            "text": text[:max_chars],
            "truncated": page.truncated or len(text) > max_chars,
        }

    async def search_docs(
        self,
        *,
        query: Annotated[str, Field(max_length=1000)],
        max_results: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> dict[str, Any]:
        """The passages that match best."""
        passages = await asyncio.to_thread(self.index.search, query, max_results)
        return {"query": query, "results": [asdict(passage) for passage in passages]}
