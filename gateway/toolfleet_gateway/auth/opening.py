"""Puts together who lets requests in, as the settings say."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from toolfleet_gateway.auth.authenticator import Authenticator
from toolfleet_gateway.auth.generated_key import GeneratedKey, generate_key
from toolfleet_gateway.auth.issuer_keys import IssuerKeys
from toolfleet_gateway.auth.protected_resource import ProtectedResource
from toolfleet_gateway.auth.tokens import TokenVerifier
from toolfleet_registry.access.live_keys import LiveKeys
from toolfleet_registry.config.gateway_settings import LOOPBACK_HOSTS
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)


@asynccontextmanager
async def authenticating(settings: Settings, generated: GeneratedKey | None = None) -> AsyncGenerator[Authenticator]:
    """The authenticator of a gateway. `generated`: as `key_to_generate` has made it. Raises `SettingsError`."""
    async with AsyncExitStack() as stack:
        keys = LiveKeys.of(settings)
        stack.push_async_callback(keys.aclose)
        tokens, resource = None, None
        if settings.oauth_issuer is not None:
            issuer, scopes = settings.oauth_issuer, settings.oauth_scopes
            issuer_keys = IssuerKeys(issuer, jwks_url=settings.oauth_jwks_url, algorithms=settings.oauth_algorithms)
            stack.push_async_callback(issuer_keys.aclose)
            tokens = TokenVerifier(
                issuer_keys,
                issuer,
                frozenset(settings.oauth_audience),
                frozenset(settings.oauth_algorithms),
                scopes,
                settings.oauth_claim_names,
            )
            resource = ProtectedResource(str(settings.gateway_resource), issuer, scopes)
        yield Authenticator(keys, tokens=tokens, resource=resource, generated=generated)


async def key_to_generate(settings: Settings, host: str, text: str | None = None) -> GeneratedKey | None:
    """Make the one key of a gateway that would otherwise let no one in: there is no issuer, and no API key.

    `None`: there is one.

    `host` is where the gateway listens. `text`: the key, if the process that starts several has made it. None is made
    if other machines could connect: there no one is let in until there is an API key. Raises `SettingsError` for an
    invalid `text`, and `FleetUnavailable` if it is unknown whether there are keys.
    """
    if text is None and settings.oauth_issuer is not None:
        return None
    if text is None:
        keys = LiveKeys.of(settings)
        try:
            if await keys.has_any():
                return None
        finally:
            await keys.aclose()
    if host not in LOOPBACK_HOSTS:
        _log.warning(
            "gateway_without_keys", host=host, hint="Nobody is let in until `toolfleet keys create` has made a key."
        )
        return None
    return generate_key(text)
