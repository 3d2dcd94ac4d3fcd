"""Tells clients where tokens for this gateway come from: the metadata of RFC 9728, and `WWW-Authenticate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolfleet_gateway.auth.refusals import AuthRefused

WELL_KNOWN = "/.well-known/oauth-protected-resource"
"""Where its metadata stand: at its origin, with its path behind."""

_ERRORS = {"invalid-key": "invalid_token", "invalid-token": "invalid_token", "insufficient-scope": "insufficient_scope"}


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """A gateway that takes the tokens of `issuer`, with all of these `scopes`. `url` is its own, without a slash at its end."""

    url: str
    issuer: str
    scopes: Sequence[str] = ()

    def metadata(self, endpoint: str = "") -> dict[str, Any]:
        """The document about it, or about an endpoint below it such as `/mcp`, as JSON."""
        document: dict[str, Any] = {
            "resource": f"{self.url}{endpoint}",
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Toolfleet",
        }
        return {**document, "scopes_supported": [*self.scopes]} if self.scopes else document

    def covering(self, endpoint: str) -> frozenset[str]:
        """Return the audiences of a token that is valid at an endpoint below the gateway: the endpoint, and each parent of it."""
        parts = endpoint.split("/")[1:]
        return frozenset(f"{self.url}/{'/'.join(parts[:count])}" for count in range(1, len(parts) + 1))

    def metadata_path(self, endpoint: str = "") -> str:
        """The path of that document at the gateway's origin."""
        return f"{WELL_KNOWN}{urlsplit(self.url).path}{endpoint}"

    def metadata_url(self, endpoint: str = "") -> str:
        """Return the URL of its metadata."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{self.metadata_path(endpoint)}"


def challenge_of(refused: AuthRefused, resource: ProtectedResource | None, endpoint: str = "") -> str | None:
    """The `WWW-Authenticate` of a refusal; `None`: other credentials would change nothing."""
    if refused.status != 401 and refused.problem != "insufficient-scope":  # noqa: PLR2004 - HTTP's
        return None
    fields = {"realm": "toolfleet"}
    if error := _ERRORS.get(refused.problem):
        fields |= {"error": error, "error_description": _quotable(str(refused))}
    if resource is not None:
        fields["resource_metadata"] = resource.metadata_url(endpoint)
        if scopes := refused.scopes or tuple(resource.scopes):
            fields["scope"] = " ".join(scopes)
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in fields.items())


def _quotable(text: str) -> str:
    """The characters that RFC 6750 allows in a description."""
    return "".join(each if " " <= each <= "~" and each not in '"\\' else "'" for each in text)
