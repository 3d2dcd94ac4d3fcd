"""Holds a client and its tokens for one run of the SDK's flow, which reads and changes them."""

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class RecordStorage:
    """The SDK's `TokenStorage`. `is_changed`: there are new tokens."""

    def __init__(self, tokens: OAuthToken | None, client: OAuthClientInformationFull | None) -> None:
        self.tokens, self.client = tokens, client
        self.is_changed = False

    async def get_tokens(self) -> OAuthToken | None:
        """Return the present tokens, if any."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Take those that came."""
        self.tokens, self.is_changed = tokens, True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client, if it is registered."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Take what a registration came to. One that names no way to send its secret has the way that RFC 7591 names."""
        if client_info.client_secret is not None and client_info.token_endpoint_auth_method is None:
            client_info.token_endpoint_auth_method = "client_secret_basic"  # noqa: S105 - a method
        self.client = client_info
