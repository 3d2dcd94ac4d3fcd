"""Finds out where an issuer has its public keys: by RFC 8414, or by OpenID Connect."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from toolfleet_gateway.auth.json_document import DocumentNotFound, NoDocument
from toolfleet_registry.config.gateway_settings import is_private_url

GetDocument: TypeAlias = Callable[[str], Awaitable[dict[str, Any]]]
"""What gets a document of a URL, and raises `NoDocument`."""


async def find_jwks_url(issuer: str, get: GetDocument) -> str:
    """The URL of its keys. Raises `NoDocument`."""
    last: NoDocument = DocumentNotFound(f"{issuer} has no metadata")
    for url in _metadata_urls(issuer):
        try:
            return _jwks_url_of(issuer, await get(url), url)
        except DocumentNotFound as exc:
            last = exc
    raise last


def _metadata_urls(issuer: str) -> tuple[str, str]:
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    return (
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    )


def _jwks_url_of(issuer: str, document: dict[str, Any], url: str) -> str:
    if document.get("issuer") != issuer:  # else whoever serves the one could speak for the other
        raise NoDocument(f"{url} is of another issuer")
    found = document.get("jwks_uri")
    if not isinstance(found, str) or not is_private_url(found):
        raise NoDocument(f"{url} names no jwks_uri with https://")
    return found
