"""One GET of a JSON document from a service that the operator named, and what may go wrong with that.

The service is trusted with queries and with its key, and with nothing else: how long it takes, how much it sends and what, is judged here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from modules.research.fetch import TLS, read_body
from toolfleet.sdk import ToolError

MAX_BYTES = 2**20  # a page of some dozens of results has 50 kB
_DOCUMENT = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class JsonService:
    """A service at `url`. The `headers` may hold a key: they go to this address only, and into no message."""

    url: httpx.URL
    seconds: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    async def get(self, **parameters: str) -> dict[str, Any]:
        """The JSON object that the service answers. Raises `ToolError` after `seconds` at the latest."""
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._body(parameters)
        except TimeoutError:
            raise ToolError(f"The search service took longer than {self.seconds:g} s; try again later.") from None
        except httpx.HTTPError as exc:
            # Its own words may hold the address, which is the operator's business.
            raise ToolError(f"The search service cannot be reached ({type(exc).__name__}); try again later.") from exc
        try:
            return _DOCUMENT.validate_json(body)
        except ValidationError:
            raise ToolError("The search service answered something that is no JSON object.") from None

    async def _body(self, parameters: Mapping[str, str]) -> bytes:
        headers = {"User-Agent": "toolfleet-research/1", "Accept": "application/json", "Accept-Encoding": "identity"}
        async with (
            # No proxies of the environment, as for pages; and no redirects: the key is for nobody else.
            httpx.AsyncClient(verify=TLS, trust_env=False, timeout=self.seconds) as client,
            client.stream(
                "GET", self.url.copy_merge_params(parameters), headers={**headers, **self.headers}
            ) as response,
        ):
            if response.is_redirect:
                raise ToolError(
                    "The search service sends elsewhere, which is not followed; RESEARCH_SEARCH_URL is not its address."
                )
            if not response.is_success:
                raise ToolError(
                    f"The search service answered with status {response.status_code}.{_hint(response.status_code)}"
                )
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise ToolError("The search service answered compressed, which was not asked for.")
            body, truncated = await read_body(response, MAX_BYTES)
            if truncated:
                raise ToolError(f"The search service answered more than {MAX_BYTES} bytes.")
            return body


def _hint(status: int) -> str:
    match status:
        case 401:
            return " It wants a key: RESEARCH_SEARCH_KEY."
        case 403:
            return " It wants a key (RESEARCH_SEARCH_KEY), or, if it is a SearXNG, 'json' among its search.formats."
        case 429:
            return " It was asked too often; try again later."
        case _:
            return ""
