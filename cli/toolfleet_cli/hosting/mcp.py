"""Builds the host of an MCP server from settings."""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from redis.asyncio import Redis

from toolfleet_cli.hosting.host_server import ChangeNotice, check_host_name, read_secrets
from toolfleet_cli.hosting.hosts import fence_of
from toolfleet_modules.calls.authentication import KEY_VARIABLE
from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.mcp_host import McpHost, McpOptions
from toolfleet_modules.hosts.mcp.oauth_flow import OAuthOptions, signing_algorithm
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer
from toolfleet_modules.hosts.mcp.stdio_transport import StdioServer
from toolfleet_modules.hosts.secrets import Secrets, SecretUnknown
from toolfleet_registry.config.host_settings import NAME_FORM, McpSpec, OAuthSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.watching import ServerChanges, WatchedResources

_PLACE = re.compile(r"\$\{[^}]*\}")
_NAMED_SECRET = re.compile(rf"\$\{{({NAME_FORM})\}}")
_CREDENTIAL = re.compile("token|key|secret|passw|auth|credential|cookie", re.IGNORECASE)
_SHORTEST = 8  # characters: what is shorter cannot be hidden

_REDIS_SECONDS = 5.0


def mcp_host(settings: Settings, spec: McpSpec, *, name: str, beside: Path, config: Path | None = None) -> McpHost:
    """Return the host of an MCP server; `beside` is where relative paths start, `config` the file of servers that describes it.

    Raises `SettingsError` for an invalid name, a missing variable or secret, and a placeholder that names no secret.
    """
    check_host_name(name)
    for logger in ("client", "mcp", "httpx2", "httpcore2"):  # they may say what a server has sent, secrets included
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    options = _options_of(settings, spec, name, beside=beside, config=config)
    return McpHost(options, listener=ChangeNotice(settings), watches=_watches_of(settings, name))


def oauth_of(settings: Settings, spec: McpSpec, name: str, *, beside: Path) -> tuple[OAuthOptions, dict[str, str]]:
    """Return the options of a server's OAuth login, and its headers.

    Raises `SettingsError` as `mcp_host` does, and if it has none.
    """
    check_host_name(name)
    if spec.url is None or spec.oauth is None:
        raise SettingsError(f"There is no login for {name!r}: it has no table `oauth`.")
    secrets = _secrets_of(spec, settings, beside)
    options = _oauth_options(settings, spec.oauth, spec.url, name, secrets, beside=beside)
    return options, _filled(spec.headers, secrets)


def _options_of(
    settings: Settings, spec: McpSpec, name: str, *, beside: Path, config: Path | None = None
) -> McpOptions:
    """Return the options of serving a server. Raises `SettingsError` as `mcp_host` does."""
    secrets = _secrets_of(spec, settings, beside)
    _check_arguments(name, (*spec.command, spec.url or ""))
    server: StdioServer | HttpServer
    if spec.url is None:
        server = StdioServer(
            _command(spec.command, beside),
            fence_of(spec, name, settings.secrets, beside=beside),
            _filled(spec.env, secrets),
            None if spec.isolation == "bwrap" else (beside / (spec.directory or ".")).resolve(),
        )
    else:
        server = HttpServer(spec.url, _filled(spec.headers, secrets))
        if spec.oauth is not None:
            oauth = _oauth_options(settings, spec.oauth, spec.url, name, secrets, beside=beside)
            server = replace(server, authorizer=Authorizer(oauth.from_file(config), secrets=secrets))
    return McpOptions(
        name,
        server,
        description=spec.description,
        lines=spec,
        key=os.environ.get(KEY_VARIABLE, ""),
        secrets=secrets,
        scope=spec.scope,
        trusted=spec.trusted,
        asks=spec.asks,
        pin=spec.pin,
        most_sessions=spec.most_sessions,
        idle_seconds=spec.idle_seconds,
        handshake_seconds=spec.handshake_seconds,
        refresh_seconds=spec.refresh_seconds,
        stuck_seconds=spec.stuck_seconds,
        longest_call_seconds=settings.max_timeout,
    )


def _secrets_of(spec: McpSpec, settings: Settings, beside: Path) -> Secrets:
    """Return the named secrets, those in `env`, `headers` and `oauth`, and literal values there that look like one."""
    texts = {**spec.env, **spec.headers, **_oauth_texts(spec.oauth)}
    named = dict.fromkeys([*spec.secrets, *(place for text in texts.values() for place in _NAMED_SECRET.findall(text))])
    read = read_secrets(named, settings.secrets, folder=beside)
    written = {
        key: text
        for key, text in texts.items()
        if _CREDENTIAL.search(key) and not _PLACE.search(text) and len(text) >= _SHORTEST
    }
    return Secrets({**written, **read.plain(named)}) if written else read


def _command(command: tuple[str, ...], beside: Path) -> tuple[str, ...]:
    program, *arguments = command
    return (str((beside / program).absolute()) if "/" in program else program, *arguments)


def _check_arguments(name: str, words: Iterable[str]) -> None:
    """Refuse secrets in arguments and addresses, which lists of processes and logs show. Raises `SettingsError`."""
    if any(_PLACE.search(word) for word in words):
        raise SettingsError(
            f"A secret of {name!r} is in its command or url, where others can read it: give it by `env` or `headers`."
        )


def _filled(texts: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
    if wrong := [key for key, text in texts.items() if _PLACE.search(_NAMED_SECRET.sub("", text))]:
        raise SettingsError(f"{wrong[0]} has a place that names no secret: it is written ${{NAME}}.")
    try:
        return {key: secrets.fill(text) for key, text in texts.items()}
    except SecretUnknown as exc:
        raise SettingsError(str(exc)) from None


def _oauth_texts(spec: OAuthSpec | None) -> dict[str, str]:
    """Return the texts that name secrets."""
    texts = {} if spec is None else {"client_secret": spec.client_secret, "private_key": spec.private_key}
    return {field: text for field, text in texts.items() if text is not None}


def _oauth_options(
    settings: Settings, spec: OAuthSpec, url: str, name: str, secrets: Secrets, *, beside: Path
) -> OAuthOptions:
    """Return the options for the server at `url`, which is the module `name`. Raises `SettingsError`, which shows no value."""
    filled = {field: secrets.fill(text) for field, text in _oauth_texts(spec).items()}
    private_key = filled.get("private_key")
    if private_key is not None:
        try:
            signing_algorithm(private_key)
        except ValueError as exc:
            raise SettingsError(f"The private_key of {name!r} cannot be used: {exc}.") from None
    return OAuthOptions(
        url,
        (beside / settings.host_data_folder).resolve() / "oauth" / f"{name}.json",
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


class RedisWatches:
    """The watches of one module; `settings` name a Redis.

    Belongs to the loop that uses it first. Raises `FleetUnavailable`.
    """

    def __init__(self, settings: Settings, module: str) -> None:
        self._settings, self._module = settings, module
        self._keys = GatewayKeys(settings.keys)
        self._redis: Redis | None = None

    async def watched(self) -> frozenset[str]:
        """Return the addresses of resources that clients watch now."""
        return await WatchedResources(self._opened(), self._keys).of(self._module)

    async def tell(self, changes: Sequence[ServerChange]) -> None:
        """Tell all gateways."""
        await ServerChanges(self._opened(), self._keys).tell(self._module, changes)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            await self._redis.aclose()
            self._redis = None

    def _opened(self) -> Redis:
        if self._redis is None:
            self._redis = self._settings.redis_client(timeout_seconds=_REDIS_SECONDS)
        return self._redis


def _watches_of(settings: Settings, module: str) -> RedisWatches | None:
    """Return the watches of a module, if the settings name a Redis: without one there are no clients to notify."""
    return None if settings.redis_url is None else RedisWatches(settings, module)
