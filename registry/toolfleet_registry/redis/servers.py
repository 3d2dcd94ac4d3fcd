"""Connects to a Redis: over TCP, TLS or a unix socket, at a fixed address or where sentinels say its master is.

For asyncio, but for `sync_client`; clients made here belong to the event loop that uses them, and are made again after
a fork.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import gaierror
from typing import Any
from urllib.parse import urlencode

from redis import Redis as SyncRedis
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as SyncRetry
from redis.sentinel import Sentinel as SyncSentinel

from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.redis.urls import SentinelUrl, check_redis_url, is_sentinel_url, read_sentinel_url

CONNECT_SECONDS = 5.0  # for everything until a connection can be used: asking sentinels, TLS, the password
_SENTINEL_SECONDS = 1.0  # for one sentinel's answer: the next one is asked then

_DEEPEST = 5  # errors that were made of one another


def async_client(url: str, *, master: str | None = None, timeout_seconds: float = 5) -> Redis:
    """Return a client for ordinary commands; each, and each connect, takes at most `timeout_seconds` and is tried once.

    `master` names what the sentinels of a `sentinel://` URL watch. Raises `SettingsError`; connects to nothing yet.
    """
    # RESP2: nothing comes unasked, and redis-py negotiates no notifications, which most servers do not have.
    options: dict[str, Any] = {
        **_options(url, master),
        "protocol": 2,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "driver_info": None,  # to look it up, and two round trips, with each connection
        "retry": Retry(NoBackoff(), 0),
    }
    return Redis.from_pool(ConnectionPool(**options))


def sync_client(url: str, *, master: str | None = None, timeout_seconds: float = 5) -> SyncRedis:
    """Return a synchronous client, for any thread, also after a fork: each wait takes at most `timeout_seconds`, nothing is tried twice.

    Raises `SettingsError`; connects to nothing yet.
    """
    _ = _options(url, master)  # says what is wrong with the URL
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": SyncRetry(NoBackoff(), 0),
    }
    tls = tls_options(url)
    # With TLS its answers are needed: the tickets that a server sends after the handshake are read with them, and redis-py
    # takes a socket on which they wait for one that has been left in the middle of an answer.
    options |= {} if tls else {"driver_info": None}
    if not is_sentinel_url(url):
        return SyncRedis.from_url(url, **options)
    parts = read_sentinel_url(url)
    sentinel = SyncSentinel(list(parts.hosts), sentinel_kwargs=sentinel_options(url))
    options |= {"username": parts.username, "password": parts.password, "db": parts.db}
    options |= {"ssl": True, **tls} if tls else {}
    client: SyncRedis = sentinel.master_for(str(master), **options)
    return client


def connection_factory(
    url: str, *, master: str | None = None, **connection_kwargs: Any
) -> Callable[[], AbstractConnection]:
    """Return a function that makes connections for callers that read and write them directly: not connected, RESP3, bytes.

    `connect` takes at most 5 s and tries once; a sentinel is asked each time. Nothing else has a time-out: redis-py
    makes those of its commands with `asyncio.wait_for`, which loses cancellations on Python 3.11. `connection_kwargs`
    are redis-py's and win. Raises `SettingsError`.
    """
    options: dict[str, Any] = {
        "protocol": 3,
        "decode_responses": False,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
        "health_check_interval": 0,  # its PING would take a reply that is not its own
        "driver_info": None,
        **_options(url, master),
        **connection_kwargs,
    }
    connection_class: type[AbstractConnection] = options.pop("connection_class")
    return lambda: connection_class(**options)


def tls_options(url: str) -> dict[str, Any]:
    """redis-py's TLS options in a URL; empty where it asks for no TLS. Certificates are verified unless it says otherwise."""
    if not is_sentinel_url(url):
        found = parse_url(url) if url.startswith("rediss://") else {}
        return {"ssl_cert_reqs": "required", **_tls(found)} if found else {}
    query = read_sentinel_url(url).options
    tls = _tls(parse_url(f"rediss://?{urlencode(query)}"))
    return {"ssl_cert_reqs": "required", **tls} if tls else {}


def sentinel_options(url: str) -> dict[str, Any]:
    """redis-py's options for a synchronous connection to a sentinel itself: its own user and password, and short waits."""
    options = read_sentinel_url(url).options
    tls = tls_options(url)
    return {
        "username": options.get("sentinel_username"),
        "password": options.get("sentinel_password"),
        "socket_timeout": _SENTINEL_SECONDS,
        "socket_connect_timeout": _SENTINEL_SECONDS,
        "retry": SyncRetry(NoBackoff(), 0),
        **({"ssl": True, **tls} if tls else {}),
    }


@dataclass(frozen=True)
class Sentinels:
    """The sentinels that know a master's address."""

    url: SentinelUrl
    master: str
    tls: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.master} of {', '.join(f'{host}:{port}' for host, port in self.url.hosts)}"

    async def master_address(self) -> tuple[str, int]:
        """Host and port, from the first sentinel that knows. Raises redis-py's `ConnectionError` if none does."""
        reasons = list[str]()
        for host, port in self.url.hosts:
            try:
                address = await self._ask(host, port)
            except (RedisError, OSError) as exc:
                reasons.append(f"{host}:{port}: {str(exc) or 'no answer'}")
                continue
            if address is not None:
                return address
            reasons.append(f"{host}:{port} knows no master {self.master!r}")
        raise RedisConnectionError(f"No sentinel says where the master is ({'; '.join(reasons)})")

    async def _ask(self, host: str, port: int) -> tuple[str, int] | None:
        """Ask one sentinel over a connection of its own, on any event loop, and close it."""
        options = self.url.options
        connection = (SSLConnection if self.tls else Connection)(
            host=host,
            port=port,
            username=options.get("sentinel_username"),
            password=options.get("sentinel_password"),
            protocol=2,
            decode_responses=True,
            socket_timeout=None,
            socket_connect_timeout=_SENTINEL_SECONDS,
            driver_info=None,
            **self.tls,
        )
        try:
            async with asyncio.timeout(_SENTINEL_SECONDS):
                await connection.connect()
                await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master)
                found: list[str] | None = await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)  # at once: a second cancellation does not interrupt it
        return None if found is None else (found[0], int(found[1]))


class _Bounded(AbstractConnection):
    """A connection that is ready in time, or not at all."""

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(self.socket_connect_timeout):
                await super().connect()  # type: ignore[no-untyped-call] # redis-py's types are partial
        except TimeoutError as exc:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError(f"{self._host_error()} was not ready in {self.socket_connect_timeout} s") from exc
        except BaseException:  # a caller that gives up has no connection to close
            await self.disconnect(nowait=True)
            raise

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 - redis-py's
    ) -> None:
        # redis-py waits with `asyncio.wait_for`, which loses a cancellation on Python 3.11: what was cancelled would go on.
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        await super().send_packed_command(command, check_health)
        if task and task.cancelling() > asked:
            await self.disconnect(nowait=True)  # the reply will not be read
            raise asyncio.CancelledError


class _TcpConnection(_Bounded, Connection):
    pass


class _TlsConnection(_Bounded, SSLConnection):
    pass


class _UnixConnection(_Bounded, UnixDomainSocketConnection):
    pass


class _MasterConnection(_Bounded, Connection):
    """A connection to the present address of the master."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self.sentinels = sentinels
        super().__init__(host=str(sentinels), **options)

    async def _connect(self) -> None:
        self.host, self.port = await self.sentinels.master_address()
        await super()._connect()  # type: ignore[no-untyped-call] # as above


class _MasterTlsConnection(_MasterConnection, SSLConnection):
    pass


_CLASSES: dict[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: _TcpConnection,
    SSLConnection: _TlsConnection,
    UnixDomainSocketConnection: _UnixConnection,
}


def _options(url: str, master: str | None) -> dict[str, Any]:
    """Return the arguments of redis-py's connections. Raises `SettingsError`."""
    try:
        check_redis_url(url)
    except ValueError as exc:
        raise SettingsError(f"The Redis URL {exc}.") from exc
    if is_sentinel_url(url):
        return _master_options(url, master)
    options: dict[str, Any] = dict(parse_url(url))
    return options | {"connection_class": _CLASSES[options.get("connection_class", Connection)]}


def _tls(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.startswith("ssl_")}


def _master_options(url: str, master: str | None) -> dict[str, Any]:
    if not master:
        raise SettingsError("A sentinel:// URL needs TOOLFLEET_SENTINEL_MASTER, the name of the master to use.")
    parts, tls = read_sentinel_url(url), tls_options(url)
    return {
        "connection_class": _MasterTlsConnection if tls else _MasterConnection,
        "sentinels": Sentinels(parts, master, tls),
        "username": parts.username,
        "password": parts.password,
        "db": parts.db,
        **tls,
    }


@asynccontextmanager
async def answering(redis: Redis, *, seconds: float) -> AsyncGenerator[None]:
    """Raise `FleetUnavailable` if a request inside is not answered within `seconds`, or fails."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (RedisError, OSError) as exc:  # TimeoutError is an OSError
        reason = reason_of(exc, f"no answer within {seconds} s")
        raise FleetUnavailable(f"Redis at {address_of(redis)} does not answer: {reason}") from exc


@asynccontextmanager
async def reaching_redis() -> AsyncGenerator[None]:
    """Raise `FleetUnavailable` if a request inside fails, for clients that have time-outs of their own; names no address."""
    try:
        yield
    except (RedisError, OSError) as exc:
        raise FleetUnavailable("Redis does not answer.") from exc


def reason_of(exc: BaseException, otherwise: str) -> str:
    """Return why a server does not answer, in words for people: the usual cause, else the error's text, or `otherwise`.

    The reason names no address: the caller decides which address may be named, and how.
    """
    at: BaseException | None = exc
    for _ in range(_DEEPEST):
        if isinstance(at, gaierror):
            return "its host name cannot be resolved"
        if isinstance(at, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(at):
            return "nobody listens there"  # at none of its addresses, if it has several: the text has them all
        at = None if at is None else at.__cause__ or at.__context__
    return str(exc) or otherwise


def address_of(redis: Redis | SyncRedis) -> str:
    """Return the address a client connects to; never with a password."""
    options = redis.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix:{options['path']}"
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    master = getattr(redis.connection_pool, "service_name", None)  # of redis-py's own pool for sentinels
    return str(options.get("sentinels", f"master {master!r} of its sentinels" if master else "an unnamed address"))
