"""Reads from settings how a host gets tokens for its MCP server."""

from pathlib import Path

from toolfleet_modules.hosts.mcp.oauth.oauth_options import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth.providers import signing_algorithm
from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_registry.config.host_specs import OAuthSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings


def oauth_texts(spec: OAuthSpec | None) -> dict[str, str]:
    """What of it names secrets."""
    texts = {} if spec is None else {"client_secret": spec.client_secret, "private_key": spec.private_key}
    return {field: text for field, text in texts.items() if text is not None}


def oauth_options(
    settings: Settings, spec: OAuthSpec, url: str, name: str, secrets: Secrets, *, beside: Path
) -> OAuthOptions:
    """The options for the server at `url`, which is the module `name`. Raises `SettingsError`, which shows no value."""
    filled = {field: secrets.fill(text) for field, text in oauth_texts(spec).items()}
    private_key = filled.get("private_key")
    if private_key is not None:
        try:
            signing_algorithm(private_key)
        except ValueError as exc:
            raise SettingsError(f"The private_key of {name!r} cannot be used: {exc}.") from None
    return OAuthOptions(
        url,
        (beside / settings.host_oauth_folder).resolve() / f"{name}.json",
        f"toolfleet host mcp {name} --login",
        grant=spec.grant,
        issuer=spec.issuer,
        client_id=spec.client_id,
        client_secret=filled.get("client_secret"),
        client_auth=spec.client_auth,
        private_key=private_key,
        client_metadata_url=spec.client_metadata_url,
        scopes=spec.scopes,
    )
