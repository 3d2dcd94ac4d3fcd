"""Describes the stored state of a client and its tokens, so that another process, or the next one, can continue with it."""

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ConfigDict, Field

from toolfleet_registry.time import machine_clock


class AuthorizationRecord(BaseModel):
    """The stored state of a client.

    `identity` says whose it is. `lasts_until`: seconds since the epoch, when the token must be renewed.

    `asked_scope` is the scope that was requested with it, `wanted_scope` the one that the server demanded since, for
    which a person must log in.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    identity: str
    tokens: OAuthToken | None = Field(default=None, repr=False)
    lasts_until: float | None = None
    asked_scope: str | None = None
    wanted_scope: str | None = None
    client: OAuthClientInformationFull | None = Field(default=None, repr=False)
    resource: ProtectedResourceMetadata | None = None
    server: OAuthMetadata | None = None
    server_url: str | None = None

    @property
    def token(self) -> str | None:
        """The token that is sent with requests."""
        return None if self.tokens is None else self.tokens.access_token

    @property
    def is_over(self) -> bool:
        """Whether the token must be renewed."""
        return self.lasts_until is not None and machine_clock.wall() >= self.lasts_until

    @property
    def can_refresh(self) -> bool:
        """Whether it has all that a renewal needs."""
        return self.server is not None and self.tokens is not None and self.tokens.refresh_token is not None

    def has_asked_for(self, scope: str | None) -> bool:
        """Return whether all of these scopes were requested, or given, already."""
        given = self.tokens.scope if self.tokens is not None else None
        return {*(scope or "").split()} <= {*(self.asked_scope or "").split(), *(given or "").split()}
