"""Gets a JSON document from an issuer: within a time and a size, without redirects and proxies."""

import asyncio
from typing import Any

import httpx

from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.manifests.http_get import NoAnswer, requested
from toolfleet_registry.system.http_bodies import loads_strict, read_body

_SECONDS = 5.0  # in all: requests may be waiting for it
_MOST_BYTES = 256 * 1024
_OK = 200


class NoDocument(Exception):
    """There is no such document to be had; its text says why."""


class DocumentNotFound(NoDocument):
    """The server has answered that there is none."""


async def get_document(url: str) -> dict[str, Any]:
    """Get a document that is an object. Raises `NoDocument`."""
    try:
        async with (
            asyncio.timeout(_SECONDS),
            requested(httpx.URL(url), headers={"accept": "application/json"}, connect_seconds=_SECONDS) as answer,
        ):
            if answer.status != _OK:
                kind = DocumentNotFound if answer.status // 100 == 4 else NoDocument  # noqa: PLR2004 - their class
                raise kind(f"{url} answers {answer.status}")
            body = await read_body(answer, _MOST_BYTES)
        document = loads_strict(body)
    except (NoAnswer, BodyTooLarge, BodyUnreadable, ValueError) as exc:
        raise NoDocument(f"{url}: {exc}") from exc
    except TimeoutError as exc:
        raise NoDocument(f"{url}: no answer within {_SECONDS:g} s") from exc
    except (httpx.InvalidURL, OSError) as exc:
        raise NoDocument(f"{url}: {exc}") from exc
    if not isinstance(document, dict):
        raise NoDocument(f"{url} is no JSON object")
    return document
