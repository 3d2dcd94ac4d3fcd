"""Runs a flow of the SDK's up to the point where it would send the request, and says what became of it."""

import re
from contextlib import aclosing

import httpx2
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import issuers_match
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic_core import from_json

from toolfleet_modules.hosts.mcp.oauth.authorization_client import AuthorizationClient
from toolfleet_modules.hosts.mcp.oauth.authorization_record import AuthorizationRecord
from toolfleet_modules.hosts.mcp.oauth.challenge import Challenge
from toolfleet_modules.hosts.mcp.oauth.oauth_errors import AuthorizationRefused, LoginNeeded
from toolfleet_modules.hosts.mcp.oauth.oauth_options import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth.person_port import PersonPort
from toolfleet_modules.hosts.mcp.oauth.providers import known_client, provider_of
from toolfleet_modules.hosts.mcp.oauth.record_storage import RecordStorage
from toolfleet_modules.hosts.mcp.oauth.safe_addresses import check_address
from toolfleet_registry.time import machine_clock

_EARLY_SECONDS = 10.0  # before its end a token is renewed; a tenth of a short life
_PAST = 1.0  # seconds since the epoch
_LONGEST = 400  # characters of the SDK's words
_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
# What a token endpoint may say (RFC 6749, 7591, 8707): other words are a server's own, and are not repeated.
_CODES = frozenset(
    {
        "access_denied", "invalid_client", "invalid_client_metadata", "invalid_grant", "invalid_redirect_uri", "invalid_request",
        "invalid_scope", "invalid_target", "unauthorized_client", "unsupported_grant_type",
    }
)  # fmt: skip


class Flow:
    """One run. The SDK asks for a request to be sent, gets the answers, and asks for others in between: those are sent here."""

    def __init__(self, options: OAuthOptions, record: AuthorizationRecord, person: PersonPort | None) -> None:
        self._options, self._record, self._person = options, record, person
        self._storage = RecordStorage(record.tokens, known_client(options, record, person))
        self._provider = provider_of(options, record, self._storage, person, self._show)
        self._refusal = ""

    async def refreshed(self) -> AuthorizationRecord | None:
        """The record with new tokens for its refresh token; `None` if that is refused.

        Raises `AuthorizationRefused` and `AuthorizationAway`.
        """
        self._provider.context.token_expiry_time = _PAST
        await self._run(None)
        return self._changed(self._record.asked_scope) if self._storage.is_changed else None

    async def authorized(self, challenge: Challenge) -> AuthorizationRecord:
        """The record with tokens as the server wants them. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        record = self._record
        before = (record.asked_scope, record.wanted_scope) if record.wanted_scope else ()
        await self._run(challenge.with_scopes(*self._options.scopes, *before))
        if not self._storage.is_changed:
            raise AuthorizationRefused("its authorization server gave no token")
        return self._changed(self._provider.context.client_metadata.scope)

    async def _run(self, challenge: Challenge | None) -> None:
        try:
            async with AuthorizationClient(self._options.url) as client:
                await self._drive(client, challenge)
        except OAuthTokenError:
            raise AuthorizationRefused(f"its authorization server gives no token{self._refusal}") from None
        except OAuthRegistrationError:
            why = f"its authorization server does not register clients{self._refusal}: name a client_id"
            raise AuthorizationRefused(why) from None
        except OAuthFlowError as exc:
            raise AuthorizationRefused(_worded(exc)) from None
        except ValueError:
            raise AuthorizationRefused("its authorization server answers with what is none of OAuth") from None

    async def _drive(self, client: AuthorizationClient, challenge: Challenge | None) -> None:
        """Run it for a request that is never sent: with `challenge` as its answer, or only to the point where it would be."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: LATEST_PROTOCOL_VERSION}
        request = httpx2.Request("POST", self._options.url, headers=headers)
        answer: httpx2.Response | None = None
        async with aclosing(self._provider.async_auth_flow(request)) as flow:
            asked = await anext(flow)
            while challenge is not None or asked is not request:
                if asked is request:
                    assert challenge is not None  # noqa: S101 - the loop's condition
                    answer, challenge = challenge.response(), None
                else:
                    answer = await self._sent(client, asked)
                asked = await flow.asend(answer)

    async def _sent(self, client: AuthorizationClient, request: httpx2.Request) -> httpx2.Response:
        """The answer to one of the flow's own requests. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        if request.method == "POST":  # it may bear what only one server shall get
            self._check_server()
        response = await client.send(request)
        if response.is_client_error:
            code = _code_in(response.content)
            self._refusal = f" ({code or f'HTTP {response.status_code}'})"
        return response

    async def _show(self, url: str) -> None:
        if self._person is None:
            raise LoginNeeded(f"it needs a login: `{self._options.login}`")
        self._check_server()
        check_address(url, self._options.url)
        await self._person.show(url)

    def _check_server(self) -> None:
        """Raise `AuthorizationRefused` if the authorization server is not the required one, or is unknown."""
        context, issuer = self._provider.context, self._options.issuer
        metadata = context.oauth_metadata
        if metadata is None and context.auth_server_url is not None:
            raise AuthorizationRefused(
                f"its authorization server {context.auth_server_url[:200]} publishes no metadata"
            )
        if issuer is not None and (metadata is None or not issuers_match(str(metadata.issuer), issuer)):
            named = "none" if metadata is None else str(metadata.issuer)[:200]
            raise AuthorizationRefused(f"the authorization server that it names ({named}) is not the issuer {issuer}")

    def _changed(self, asked_scope: str | None) -> AuthorizationRecord:
        """The record with what came of the flow. Raises `AuthorizationRefused` for a token that cannot be sent."""
        context, tokens = self._provider.context, self._storage.tokens
        assert tokens is not None  # noqa: S101 - it has changed
        if not _TOKEN.fullmatch(tokens.access_token):
            raise AuthorizationRefused("its authorization server gives a token that cannot be sent")
        seconds = tokens.expires_in or 0
        early = min(_EARLY_SECONDS, seconds / 10)
        facts = {
            "tokens": tokens,
            "lasts_until": machine_clock.wall() + seconds - early if seconds > 0 else None,
            "asked_scope": asked_scope,
            "wanted_scope": None,
            "client": self._storage.client if self._options.client_id is None else None,
            "resource": context.protected_resource_metadata,
            "server": context.oauth_metadata,
            "server_url": context.auth_server_url,
        }
        return self._record.model_copy(update=facts)


def _code_in(body: bytes) -> str | None:
    """The error that a token endpoint names, if it is one of those that there are."""
    try:
        found = from_json(body)
    except ValueError:
        return None
    code = found.get("error") if isinstance(found, dict) else None
    return code if isinstance(code, str) and code in _CODES else None


def _worded(error: OAuthFlowError) -> str:
    """The SDK's words, where they show nothing that is a secret."""
    text = str(error)
    if text.startswith("State parameter"):
        return "its login came back with another state"
    if text.startswith("Authorization response"):
        return "its login came back from another authorization server"
    return f"{text[:1].lower()}{text[1:_LONGEST]}"
