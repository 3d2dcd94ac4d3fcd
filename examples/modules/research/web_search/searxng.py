"""Searches with a SearXNG, or what speaks as one: `GET /search?q=…&format=json`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from modules.research.web_search.json_service import JsonService
from modules.research.web_search.provider import WebResult
from toolfleet.sdk import ToolError


@dataclass(frozen=True, slots=True)
class SearXNG:
    """A `SearchProvider`. An instance asks many engines; where none of them answered, that is no empty result."""

    service: JsonService

    async def search(self, query: str) -> Iterable[WebResult]:
        """The instance's results, the best first."""
        answer = await self.service.get(q=query, format="json")
        found = answer.get("results")
        if not isinstance(found, list):
            raise ToolError(
                "The search service answered no results, but something else: it does not speak as SearXNG does."
            )
        if not found and answer.get("unresponsive_engines"):
            raise ToolError("None of the search service's engines answered; try again later, or with other words.")
        return _results(found)


def _results(found: list[Any]) -> Iterator[WebResult]:
    for one in found:
        if isinstance(one, dict) and isinstance(url := one.get("url"), str):
            yield WebResult(_text(one.get("title")), url, _text(one.get("content")))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
