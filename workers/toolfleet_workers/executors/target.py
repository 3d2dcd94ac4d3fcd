"""Where a request goes, and what of its head is the same each time."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import httpx


class Origin(NamedTuple):
    """A server: whoever posts to the same one can share its connections."""

    host: str
    port: int
    is_tls: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A URL to post to. `head` is the start of each request to it: its line, `Host`, and the fields that never change."""

    origin: Origin
    head: bytes

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str]) -> "Target":
        """The target at `url`, which may hold a user and a password."""
        # By httpx, as discovery has it: both must come to the same place.
        parts = httpx.URL(url)
        is_tls = parts.scheme == "https"
        host = parts.raw_host.decode()
        netloc = parts.netloc.decode().replace(host, host.rstrip("."), 1)  # the dot is for name servers only
        fields = {"Host": netloc, **_authorization(parts), **headers}
        lines = [f"POST {parts.raw_path.decode()} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        origin = Origin(host, parts.port or (443 if is_tls else 80), is_tls)
        return cls(origin, "".join(f"{line}\r\n" for line in lines).encode())


def _authorization(url: httpx.URL) -> dict[str, str]:
    if not (url.username or url.password):
        return {}
    credentials = f"{url.username}:{url.password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}
