"""Checks the URLs that a fleet is given. The reasons never repeat a URL: it may hold a password."""

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from toolfleet_registry.errors import SettingsError
from toolfleet_registry.system.lazy_names import LazyModule

if TYPE_CHECKING:
    import httpx
else:
    httpx = LazyModule("httpx")

_SENTINEL = "sentinel"
_REDIS_SCHEMES = ("redis", "rediss", "unix", _SENTINEL)
_BROKER_SCHEMES = (*_REDIS_SCHEMES, "amqp", "amqps")
_TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
    "ssl_password",
)
# Others change how redis-py speaks and waits, which is for the fleet to decide.
_OPTIONS = {
    "redis": ("db",),
    "rediss": ("db", *_TLS_OPTIONS),
    "unix": ("db",),
    _SENTINEL: ("db", "sentinel_password", "sentinel_username", *_TLS_OPTIONS),
}
_CERT_REQS = ("none", "optional", "required")
_SENTINEL_PORT = 26379

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"(?:[a-z0-9]+[.-])*[a-z][a-z0-9]*|{_OCTET}(?:\.{_OCTET}){{3}}"
_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}"
PLAIN_HTTP_URL = rf"(?P<scheme>https?)://(?P<host>{_HOST})(?::(?P<port>{_PORT}))?(?P<path>(?:/[A-Za-z0-9_~-]+)+)"
"""The form of URLs with nothing in them that is written in another way on the wire: one host or IPv4 address, and a path
without dots. Nearly all of modules are such, and are read without httpx, which takes a tenth of a process's start to load."""

HTTP_PORTS = {"http": 80, "https": 443}


class PlainUrl(NamedTuple):
    """A URL of the form `PLAIN_HTTP_URL`, with the parts of an `httpx.URL` that a request needs."""

    scheme: str
    host: str
    port: int | None
    netloc: bytes
    raw_path: bytes
    userinfo: bytes = b""
    username: str = ""
    password: str = ""

    @property
    def raw_host(self) -> bytes:
        """The host as it is on the wire."""
        return self.host.encode()


def read_url(text: str) -> "PlainUrl | httpx.URL":
    """Read a URL. Raises `httpx.InvalidURL`."""
    plain = re.fullmatch(PLAIN_HTTP_URL, text)
    if plain is None:
        return httpx.URL(text)
    scheme, host, number, path = plain["scheme"], plain["host"], plain["port"], plain["path"]
    port = None if number is None or int(number) == HTTP_PORTS[scheme] else int(number)
    return PlainUrl(scheme, host, port, (host if port is None else f"{host}:{port}").encode(), path.encode())


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The addresses of sentinels, and the credentials for Redis. `options` is the query, without `db`."""

    hosts: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    db: int
    options: dict[str, str]


def fleet_url(url: str | None) -> str:
    """Return the URL of a fleet's Redis, if the settings name one. Raises `SettingsError`."""
    if url is None:
        raise SettingsError(
            "No fleet to talk to: set TOOLFLEET_REDIS_URL, or run `toolfleet up` here or in a folder above."
        )
    return url


def check_redis_url(url: str) -> str:
    """Return the URL, if it is one for redis-py, or of sentinels, with no option that the fleet sets itself. Raises `ValueError`."""
    scheme = _scheme_of(url, _REDIS_SCHEMES)
    query = read_sentinel_url(url).options if scheme == _SENTINEL else _options_of(url)
    for option in query:
        if option not in _OPTIONS[scheme]:
            raise ValueError(f"must not have the option {option!r}; {', '.join(_OPTIONS[scheme])} may be given")
    if query.get("ssl_cert_reqs", "required") not in _CERT_REQS:
        raise ValueError(f"must have {', '.join(_CERT_REQS[:-1])} or {_CERT_REQS[-1]} for ssl_cert_reqs")
    return url


def check_broker_url(url: str) -> str:
    """Return the URL, if Celery has a broker for it that a fleet can work with. Raises `ValueError`."""
    scheme = _scheme_of(url, _BROKER_SCHEMES)
    if scheme in _REDIS_SCHEMES:
        return check_redis_url(url)
    _check_port(url)
    return url


@functools.lru_cache(maxsize=64)  # asked several times a call
def is_redis_url(url: str) -> bool:
    """Return whether it is a URL of Redis, in any of its forms."""
    return url.partition("://")[0] in _REDIS_SCHEMES


def is_sentinel_url(url: str) -> bool:
    """Return whether the URL names sentinels, which know the address of Redis."""
    return url.startswith(f"{_SENTINEL}://")


def read_sentinel_url(url: str) -> SentinelUrl:
    """Read `sentinel://[user:password@]host[:port][,host[:port]…][/db]`; `;sentinel://` may stand for a comma.

    User, password and database are those of Redis; the sentinels' own user and password are options. Raises `ValueError`.
    """
    hosts, credentials, db, options = list[tuple[str, int]](), "", "0", dict[str, str]()
    for part in url.removeprefix(f"{_SENTINEL}://").split(f";{_SENTINEL}://"):
        rest, _, query = part.partition("?")
        authority, _, path = rest.partition("/")
        before, _, addresses = authority.rpartition("@")
        hosts += [_host(address) for address in addresses.split(",")]
        credentials, db = credentials or before, path or db
        options |= dict(parse_qsl(query))
    username, _, password = credentials.partition(":")
    return SentinelUrl(
        hosts=tuple(hosts),
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=_database(options.pop("db", db)),
        options=options,
    )


def is_http_url(url: str) -> bool:
    """Return whether a module can have this URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half of an IPv6 address
        return False


def _scheme_of(url: str, schemes: tuple[str, ...]) -> str:
    scheme, separator, _ = url.partition("://")
    if scheme not in schemes or not separator:
        raise ValueError(f"must start with {', '.join(f'{name}://' for name in schemes[:-1])} or {schemes[-1]}://")
    return scheme


def _options_of(url: str) -> dict[str, str]:
    _check_port(url)
    return dict(parse_qsl(urlsplit(url).query))


def _check_port(url: str) -> None:
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ValueError("must have a port that is a number up to 65535") from None


def _host(address: str) -> tuple[str, int]:
    _check_port(f"//{address}")
    parts = urlsplit(f"//{address}")
    if not parts.hostname:
        raise ValueError("must have a host for each sentinel")
    return parts.hostname, parts.port or _SENTINEL_PORT


def _database(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("must have a database that is a number")
    return int(text)
