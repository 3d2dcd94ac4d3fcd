"""Reads why a server turned a request away, and words it for the SDK as a server would."""

from dataclasses import dataclass, replace

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, union_scopes

_UNAUTHORIZED = 401
_FORBIDDEN = 403
_LONGEST = 2000  # characters of a field


@dataclass(frozen=True, slots=True)
class Challenge:
    """A server's demand for authorization. `is_step_up`: it has accepted the token, and wants one with more scope."""

    is_step_up: bool = False
    scope: str | None = None
    metadata_url: str | None = None

    @classmethod
    def of(cls, response: httpx2.Response) -> "Challenge | None":
        """Parse an answer's challenge; `None` if it asks for no other token."""
        is_step_up = response.status_code == _FORBIDDEN and _field(response, "error") == "insufficient_scope"
        if not is_step_up and response.status_code != _UNAUTHORIZED:
            return None
        return cls(is_step_up, _field(response, "scope"), _field(response, "resource_metadata"))

    def with_scopes(self, *scopes: str | None) -> "Challenge":
        """The same, with these in it; blank-separated."""
        scope = self.scope
        for more in scopes:
            scope = union_scopes(scope, more)
        return replace(self, scope=scope)

    def response(self) -> httpx2.Response:
        """An answer that says it."""
        fields = {
            "error": "insufficient_scope" if self.is_step_up else None,
            "scope": self.scope,
            "resource_metadata": self.metadata_url,
        }
        said = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
        status = _FORBIDDEN if self.is_step_up else _UNAUTHORIZED
        return httpx2.Response(status, headers={"WWW-Authenticate": f"Bearer {said}".strip()})


def _field(response: httpx2.Response, name: str) -> str | None:
    value = extract_field_from_www_auth(response, name)
    return value if value is not None and value.isascii() and len(value) <= _LONGEST else None
