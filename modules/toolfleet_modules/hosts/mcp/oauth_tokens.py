"""Gives requests to one MCP server their token, and gets another where that one is over, refused, or not enough.

Credentials are sent over https, and to this machine only for a server that is on it as well.

`OAuthTransport` sends requests with their token, `Authorizer` has the tokens, `Flow` runs the SDK's flow for others, and
`log_in` asks a person for them.
"""

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import TracebackType
from typing import Self

import httpx2
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match, union_scopes
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic_core import from_json

from toolfleet_modules.hosts.mcp.oauth_flow import (
    AuthorizationAway,
    AuthorizationRecord,
    AuthorizationRefused,
    LoginNeeded,
    OAuthOptions,
    PersonPort,
    RecordFile,
    RecordStorage,
    known_client,
    provider_of,
)
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_registry.system import machine_clock

_UNAUTHORIZED = 401
_FORBIDDEN = 403
_LONGEST = 2000  # characters of a field

_MOST_BYTES = 256 * 2**10  # of an answer: metadata and tokens have some hundreds
_SECONDS = 15.0  # for one answer
_TOO_MANY = 429

_RENEWAL_SECONDS = 120.0  # for a renewal, with the wait for another process; a person has a time of their own
_HIDDEN_NAME = "oauth"
_END_SECONDS = 5.0  # for a renewal when the host ends
_REST_SECONDS = 5.0  # after a flow that was refused, before there is another
_MOST_GRANTS, _GRANT_SECONDS = 2, 10.0  # so many tokens within so long are in vain: the server refuses them

_EARLY_SECONDS = 10.0  # before its end a token is renewed; a tenth of a short life
_LONG_AGO = 1.0  # seconds since the epoch
_LONGEST_WORDS = 400  # characters of the SDK's words
_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
# What a token endpoint may say (RFC 6749, 7591, 8707): other words are a server's own, and are not repeated.
_CODES = frozenset(
    {
        "access_denied", "invalid_client", "invalid_client_metadata", "invalid_grant", "invalid_redirect_uri", "invalid_request",
        "invalid_scope", "invalid_target", "unauthorized_client", "unsupported_grant_type",
    }
)  # fmt: skip

_MOST_TOKENS = 4  # for one request: the one that there is, another process's, one that is renewed, and one for more
_MOST_RENEWALS = 2  # of these may come of refresh tokens

# It begins no session, and is what a host asks first that a server may want a token for.
_QUESTION = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


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
        """Return these scopes with others added, separated by blanks."""
        scope = self.scope
        for more in scopes:
            scope = union_scopes(scope, more)
        return replace(self, scope=scope)

    def response(self) -> httpx2.Response:
        """Return a response with this challenge in its header."""
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


def check_address(url: str | httpx2.URL, server: str | httpx2.URL) -> None:
    """Raise `AuthorizationRefused` for an address that `server`, or what it names, must not send a host to."""
    try:
        asked, near = httpx2.URL(url), is_here(httpx2.URL(server))
    except (httpx2.InvalidURL, TypeError):
        raise AuthorizationRefused("it names an address that is no URL") from None
    shown = f"{asked.scheme}://{asked.host}"[:200]
    if asked.userinfo or asked.scheme not in {"http", "https"} or not asked.host:
        raise AuthorizationRefused(f"it names an address that nothing is sent to: {shown}")
    if is_here(asked):
        if not near:
            raise AuthorizationRefused(f"it names an address on this machine: {shown}")
    elif asked.scheme != "https":
        raise AuthorizationRefused(f"it names an address without https: {shown}")


def is_same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Return whether data for one URL may be sent to the other."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def is_here(url: httpx2.URL) -> bool:
    """Return whether the URL is on this machine."""
    if url.host == "localhost" or url.host.endswith(".localhost"):
        return True
    try:
        address = ip_address(url.host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


class AuthorizationClient:
    """A client of the authorization server of `server`, closed after use. `name` is the server's name in messages."""

    def __init__(self, server: str, *, name: str = "its authorization server") -> None:
        self._server, self._name = server, name
        self._client = httpx2.AsyncClient(
            transport=_ShortAnswers(httpx2.AsyncHTTPTransport(), name),
            timeout=httpx2.Timeout(_SECONDS),
            trust_env=False,  # no credentials from elsewhere
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer, whole. No redirect is followed. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        check_address(request.url, self._server)
        request.headers["Accept-Encoding"] = "identity"
        request.headers.setdefault("Accept", "application/json")
        try:
            async with asyncio.timeout(_SECONDS):
                response = await self._client.send(request, follow_redirects=False)
        except (httpx2.TransportError, httpx2.StreamError, TimeoutError):
            raise AuthorizationAway(f"{self._name} cannot be reached") from None
        except httpx2.InvalidURL:
            raise AuthorizationRefused("it names an address that is no URL") from None
        if response.is_server_error or response.status_code == _TOO_MANY:
            raise AuthorizationAway(f"{self._name} answers with HTTP {response.status_code}")
        return response


class _ShortAnswers(httpx2.AsyncBaseTransport):
    """Reads answers as far as they may go."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, name: str) -> None:
        self._inner, self._name = inner, name

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer with its body. Raises `AuthorizationRefused`."""
        response = await self._inner.handle_async_request(request)
        body = bytearray()
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise AuthorizationRefused(f"{self._name} answers with what is compressed")
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise AuthorizationRefused(f"{self._name} answers with more than {_MOST_BYTES} bytes")
        finally:
            await response.aclose()
        return httpx2.Response(response.status_code, headers=response.headers, content=bytes(body))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


class Authorizer:
    """The tokens for one server, which processes may share by their file.

    They are hidden by `secrets`. Without `person` no login is possible: a request that needs one is refused with
    `LoginNeeded`. `is_fresh`: the stored state is ignored.
    """

    def __init__(
        self,
        options: OAuthOptions,
        *,
        secrets: Secrets | None = None,
        person: PersonPort | None = None,
        is_fresh: bool = False,
    ) -> None:
        self.options = options
        self._secrets = secrets
        self._person, self._is_fresh = person, is_fresh
        self._file = RecordFile(options.file, options.identity)
        self._record: AuthorizationRecord | None = None
        self._turn = asyncio.Lock()
        self._renewing = set[asyncio.Task[str]]()
        self._refused: tuple[float, AuthorizationRefused] | None = None
        self._grants = deque[float](maxlen=_MOST_GRANTS)

    async def token(self) -> str | None:
        """Return the token to send; `None` if there is none. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        record = self._record
        if record is None or record.token is None:
            record = self._known(await self._kept())
        if record.is_over and (record.can_refresh or not self.options.has_person):
            return await self.renewed(record.token, Challenge())
        return record.token

    async def renewed(self, token: str | None, challenge: Challenge, *, may_refresh: bool = True) -> str:
        """Return another token than the one that a server has answered with this, or that has expired.

        `may_refresh`: a refresh token is used, if there is one. Raises `AuthorizationRefused` and `AuthorizationAway`.
        """
        # A renewal continues if its waiters leave: a refresh token counts once, and what came for it must be kept.
        task = asyncio.ensure_future(self._renew(token, challenge, may_refresh=may_refresh))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiters see it
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """End what goes on: a login at once, a renewal when it has its answer."""
        if self._person is None and self._renewing:
            await asyncio.wait(self._renewing, timeout=_END_SECONDS)
        for task in self._renewing:
            task.cancel()
        await asyncio.gather(*self._renewing, return_exceptions=True)

    async def _renew(self, token: str | None, challenge: Challenge, *, may_refresh: bool) -> str:
        try:
            async with asyncio.timeout(_RENEWAL_SECONDS if self._person is None else None), self._turn:
                if self._person is not None:  # who may take minutes: the file is locked only when it is written
                    return await self._next(token, challenge, may_refresh=may_refresh)
                async with self._file.locked():
                    return await self._next(token, challenge, may_refresh=may_refresh)
        except TimeoutError:
            raise AuthorizationAway(f"its tokens were not renewed within {_RENEWAL_SECONDS:g} s") from None

    async def _next(self, token: str | None, challenge: Challenge, *, may_refresh: bool) -> str:
        """Return another token, of this process or of another one that was faster."""
        record = await self._kept()
        if record.token is not None and record.token != token and not record.is_over:
            return self._known(record).token or ""
        if may_refresh and not challenge.is_step_up and record.can_refresh and self.options.has_person:
            changed = await Flow(self.options, record, None).refreshed()
            if changed is not None:
                return await self._keep(changed)
            record = record.model_copy(update={"tokens": None, "lasts_until": None})
            await self._keep_record(record)  # so that a dead refresh token is not tried again
        return await self._keep(await self._authorized(record, challenge))

    async def _authorized(self, record: AuthorizationRecord, challenge: Challenge) -> AuthorizationRecord:
        """Return the record with tokens that the server asks for. Raises `AuthorizationRefused` and `AuthorizationAway`."""
        now = asyncio.get_running_loop().time()
        if self._refused is not None and now < self._refused[0]:
            raise self._refused[1]
        is_vain = len(self._grants) == _MOST_GRANTS and now < self._grants[0] + _GRANT_SECONDS
        if is_vain and not challenge.is_step_up:
            raise AuthorizationRefused("its server refuses the tokens that its authorization server gives")
        try:
            await self._check(record, challenge)
            changed = await Flow(self.options, record, self._person).authorized(challenge)
        except AuthorizationRefused as exc:
            self._refused = asyncio.get_running_loop().time() + _REST_SECONDS, exc
            raise
        self._refused = None
        self._grants.append(asyncio.get_running_loop().time())
        return changed

    async def _check(self, record: AuthorizationRecord, challenge: Challenge) -> None:
        """Raise `AuthorizationRefused` if asking is useless, and `LoginNeeded` if there is no person to ask."""
        if challenge.is_step_up and record.has_asked_for(challenge.scope):
            wanted = f" ({challenge.scope})" if challenge.scope else ""
            raise AuthorizationRefused(f"its server wants more rights{wanted} than its authorization server gives")
        if not self.options.has_person or self._person is not None:
            return
        if challenge.is_step_up:
            wants = challenge.with_scopes(record.wanted_scope).scope
            await self._keep_record(record.model_copy(update={"wanted_scope": wants}))
            raise LoginNeeded(f"it needs a login for {challenge.scope}: `{self.options.login}`")
        raise LoginNeeded(f"it needs a login: `{self.options.login}`")

    async def _kept(self) -> AuthorizationRecord:
        record = await self._file.read()
        if self._is_fresh and self._record is None:
            return record.model_copy(update={"tokens": None, "lasts_until": None, "client": None, "server": None})
        return self._record if self._is_fresh and self._record is not None else record

    async def _keep(self, record: AuthorizationRecord) -> str:
        await self._keep_record(record)
        assert record.token is not None
        return record.token

    async def _keep_record(self, record: AuthorizationRecord) -> None:
        if self._person is None:
            await self._file.write(record)
        else:
            async with self._file.locked():
                await self._file.write(record)
        self._known(record)

    def _known(self, record: AuthorizationRecord) -> AuthorizationRecord:
        """Return the record, which counts from now on."""
        self._record = record
        if self._secrets is not None and record.tokens is not None:
            for value in (record.tokens.access_token, record.tokens.refresh_token):
                self._secrets.hide_also(_HIDDEN_NAME, value or "")
        return record


class Flow:
    """One run of a flow of the SDK's, up to the point where it would send the request. The SDK asks for a request to be sent, gets the answers, and asks for others in between: those are sent here."""

    def __init__(self, options: OAuthOptions, record: AuthorizationRecord, person: PersonPort | None) -> None:
        self._options, self._record, self._person = options, record, person
        self._storage = RecordStorage(record.tokens, known_client(options, record, person))
        self._provider = provider_of(options, record, self._storage, person, self._show)
        self._refusal = ""

    async def refreshed(self) -> AuthorizationRecord | None:
        """Return the record with new tokens for its refresh token; `None` if that is refused.

        Raises `AuthorizationRefused` and `AuthorizationAway`.
        """
        self._provider.context.token_expiry_time = _LONG_AGO
        await self._run(None)
        return self._changed(self._record.asked_scope) if self._storage.is_changed else None

    async def authorized(self, challenge: Challenge) -> AuthorizationRecord:
        """Return the record with tokens as the server wants them. Raises `AuthorizationRefused` and `AuthorizationAway`."""
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
                    assert challenge is not None
                    answer, challenge = challenge.response(), None
                else:
                    answer = await self._sent(client, asked)
                asked = await flow.asend(answer)

    async def _sent(self, client: AuthorizationClient, request: httpx2.Request) -> httpx2.Response:
        """Return the answer to one of the flow's own requests. Raises `AuthorizationRefused` and `AuthorizationAway`."""
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
        """Return the record with the result of the flow. Raises `AuthorizationRefused` for a token that cannot be sent."""
        context, tokens = self._provider.context, self._storage.tokens
        assert tokens is not None
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
    """Return the error of a token endpoint, if it is a known one."""
    try:
        found = from_json(body)
    except ValueError:
        return None
    code = found.get("error") if isinstance(found, dict) else None
    return code if isinstance(code, str) and code in _CODES else None


def _worded(error: OAuthFlowError) -> str:
    """Return the SDK's message, if it shows no secret."""
    text = str(error)
    if text.startswith("State parameter"):
        return "its login came back with another state"
    if text.startswith("Authorization response"):
        return "its login came back from another authorization server"
    return f"{text[:1].lower()}{text[1:_LONGEST_WORDS]}"


class OAuthTransport(httpx2.AsyncBaseTransport):
    """Sends requests with their token, and once more with another where the server wants that; other origins get none."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, authorizer: Authorizer) -> None:
        self._inner, self._authorizer = inner, authorizer
        self._server = httpx2.URL(authorizer.options.url)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the server's answer. Raises `AuthorizationRefused` and `AuthorizationAway`: the server has done nothing then."""
        if not is_same_origin(request.url, self._server):
            return await self._inner.handle_async_request(request)
        token = await self._authorizer.token()
        for number in range(_MOST_TOKENS):
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            response = await self._inner.handle_async_request(request)
            challenge = Challenge.of(response)
            if challenge is None:
                return response
            await response.aclose()
            if number + 1 < _MOST_TOKENS:
                token = await self._authorizer.renewed(token, challenge, may_refresh=number < _MOST_RENEWALS)
        raise AuthorizationRefused("its server refuses the tokens that its authorization server gives")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


async def log_in(options: OAuthOptions, headers: Mapping[str, str], person: PersonPort) -> None:
    """Have this person log in, regardless of stored tokens, and store the new ones. `headers` go with each request to the server.

    Raises `AuthorizationRefused`, also if the person does not come back, and `AuthorizationAway`.
    """
    challenge = await _challenge(options.url, headers)
    authorizer = Authorizer(options, person=person, is_fresh=True)
    try:
        await authorizer.renewed(None, challenge)
    finally:
        await authorizer.aclose()


async def _challenge(url: str, headers: Mapping[str, str]) -> Challenge:
    """Return the server's challenge to a client without a token.

    A server without one may demand a token later, and publishes the details.
    """
    accepted = {"Accept": "application/json, text/event-stream", **headers}
    async with AuthorizationClient(url, name="it") as client:
        answer = await client.send(httpx2.Request("POST", url, json=_QUESTION, headers=accepted))
    return Challenge.of(answer) or Challenge()
