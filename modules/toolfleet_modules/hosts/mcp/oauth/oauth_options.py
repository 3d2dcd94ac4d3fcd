"""Configures how tokens for one MCP server are got, and where they are kept."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class OAuthOptions:
    """The options of a host as a client of the server at `url`. Tokens are kept in `file`, which processes may share.

    `login` is the command by which a person logs in, for messages. `client_secret` and `private_key`, a PEM, are sent,
    or used, for `issuer` only, and need one. `scopes` are requested instead of all that the server lists.
    """

    url: str
    file: Path
    login: str
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_auth: Literal["basic", "post"] = "basic"
    private_key: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    scopes: tuple[str, ...] = ()

    def from_file(self, config: Path | None) -> "OAuthOptions":
        """The same, for a server that this file of servers describes."""
        return self if config is None else replace(self, login=f"{self.login} --config {config}")

    @property
    def has_person(self) -> bool:
        """Whether a person has to log in."""
        return self.grant == "authorization_code"

    @property
    def identity(self) -> str:
        """A digest of the tokens' owner: tokens for another server or client are not sent to this one."""
        whose = [self.url, self.grant, self.issuer, self.client_id, self.client_metadata_url]
        return hashlib.sha256(json.dumps(whose).encode()).hexdigest()
