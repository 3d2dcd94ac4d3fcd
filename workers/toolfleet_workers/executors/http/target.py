"""Parses where a request goes, and writes what of its head is the same each time."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Origin(NamedTuple):
    """A server: requests to the same one can share its connections."""

    host: str
    port: int
    is_tls: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A URL to ask. `head` is the start of each request to it: its line, `Host`, and the fields that never change."""

    origin: Origin
    head: bytes = field(repr=False)  # there may be a token in it

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], *, method: str = "POST") -> "Target":
        """The target at `url`, which may hold a user and a password: they count unless `headers` have an `Authorization`."""
        plain = _PLAIN.fullmatch(url)
        return cls._of_plain(plain, headers, method) if plain else cls._of_any(url, headers, method)

    @classmethod
    def _of_plain(cls, url: re.Match[str], headers: Mapping[str, str], method: str) -> "Target":
        """Make the target as `_of_any` does, without httpx, which nearly all URLs do not need: it takes a tenth of a worker's start to load."""
        scheme, host, number, path = url["scheme"], url["host"], url["port"], url["path"]
        port = int(number) if number else _PORTS[scheme]
        netloc = host if port == _PORTS[scheme] else f"{host}:{port}"
        return cls(Origin(host, port, scheme == "https"), _head(method, path, {"Host": netloc, **headers}))

    @classmethod
    def _of_any(cls, url: str, headers: Mapping[str, str], method: str) -> "Target":
        import httpx  # noqa: PLC0415 - as above

        # As discovery has it: both must come to the same place.
        parts = httpx.URL(url)
        host = parts.raw_host.decode()
        netloc = parts.netloc.decode().replace(host, host.rstrip("."), 1)  # the dot is for name servers only
        has_authorization = "authorization" in {name.lower() for name in headers}
        credentials = {} if has_authorization else _authorization(parts.username, parts.password)
        fields = {"Host": netloc, **credentials, **headers}
        origin = Origin(host, parts.port or _PORTS[parts.scheme], parts.scheme == "https")
        return cls(origin, _head(method, parts.raw_path.decode(), fields))


def _head(method: str, path: str, fields: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()


def _authorization(username: str, password: str) -> dict[str, str]:
    if not (username or password):
        return {}
    credentials = f"{username}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}


_PORTS = {"http": 80, "https": 443}
# Nothing in it that is written in another way on the wire: one host or IPv4 address, and a path without dots.
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"(?:[a-z0-9]+[.-])*[a-z][a-z0-9]*|{_OCTET}(?:\.{_OCTET}){{3}}"
_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}"
_PLAIN = re.compile(rf"(?P<scheme>https?)://(?P<host>{_HOST})(?::(?P<port>{_PORT}))?(?P<path>(?:/[A-Za-z0-9_~-]+)+)")
