"""Fetching one web page from an address that was checked.

A model may be talked into fetching any URL. So the host's addresses are looked up once a hop, all must be allowed, and
the connection goes to the very address that was checked: a name server that answers differently a moment later gains
nothing. Proxies from the environment are not used: they would look names up themselves.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address

import httpx

from modules.research.addresses import Address
from toolfleet.sdk import ToolError

_MAX_HOPS = 5
_HEADERS = {
    "User-Agent": "toolfleet-research/1",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.8",
    "Accept-Encoding": "identity",  # a small compressed page may be a huge one
}
TLS = ssl.create_default_context()  # loading the certificates takes longer than many a request

Resolve = Callable[[str, int], Awaitable[list[Address]]]


@dataclass(frozen=True, slots=True)
class Page:
    """What a server sent. `url` is the last one of the redirects; `truncated`: there was more."""

    url: str
    content_type: str
    body: bytes
    truncated: bool
    status: int = 200


class Unreached(ToolError):
    """Nobody has answered there in time: that may pass by itself."""


async def resolve(host: str, port: int) -> list[Address]:
    """All addresses of a host, as the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(sockaddr[0])) for *_, sockaddr in found]


async def read_body(response: httpx.Response, max_bytes: int) -> tuple[bytes, bool]:
    """Read at most `max_bytes` of an answer, as they came, and say whether there was more."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            return bytes(body[:max_bytes]), True
    return bytes(body), False


@dataclass(frozen=True, slots=True)
class PageFetcher:
    """Fetches pages from hosts of which `may_connect` allows every address. What goes wrong is a `ToolError`."""

    may_connect: Callable[[Address], bool]
    seconds: float
    max_bytes: int
    resolve: Resolve = resolve

    async def fetch(self, url: str, *, any_status: bool = False) -> Page:
        """Fetch `url`, following redirects; each is checked like the first. With `any_status` an error's page is one, too."""
        try:
            async with asyncio.timeout(self.seconds):
                return await self._follow(_parse(url), any_status=any_status)
        except TimeoutError:
            raise Unreached(f"{url} took longer than {self.seconds:g} s.") from None
        except httpx.HTTPError as exc:
            raise Unreached(f"{url} cannot be fetched: {exc or type(exc).__name__}.") from exc

    async def _follow(self, url: httpx.URL, *, any_status: bool) -> Page:
        for _ in range(_MAX_HOPS):
            answer = await self._get(url, any_status=any_status)
            if isinstance(answer, Page):
                return answer
            url = _parse(answer)
        raise ToolError(f"More than {_MAX_HOPS} redirects, the last to {url}.")

    async def _get(self, url: httpx.URL, *, any_status: bool) -> Page | str:
        """The page, or where it has moved to."""
        address = await self._allowed_address(url)
        # A client of its own for each hop: a kept connection belongs to an address, and could serve another host.
        async with (
            httpx.AsyncClient(verify=TLS, trust_env=False, timeout=self.seconds) as client,
            client.stream(
                "GET",
                url.copy_with(host=str(address)),
                headers={**_HEADERS, "Host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": url.raw_host.decode("ascii")},  # the certificate is checked against it
            ) as response,
        ):
            if response.has_redirect_location:
                return str(url.join(response.headers["Location"]))
            if not (response.is_success or any_status):
                raise ToolError(f"{url} answered with status {response.status_code}.")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise ToolError(f"{url} came compressed, which was not asked for.")
            body, truncated = await read_body(response, self.max_bytes)
            return Page(str(url), response.headers.get("Content-Type", ""), body, truncated, response.status_code)

    async def _allowed_address(self, url: httpx.URL) -> Address:
        host = url.raw_host.decode("ascii")
        try:
            addresses = await self.resolve(host, url.port or (443 if url.scheme == "https" else 80))
        except (OSError, UnicodeError, ValueError) as exc:
            if isinstance(exc, socket.gaierror) and exc.errno == socket.EAI_AGAIN:
                raise Unreached(f"The name service does not answer for {host!r} now.") from None
            raise ToolError(f"There is no host {host!r}.") from None
        if not addresses or not all(self.may_connect(address) for address in addresses):
            raise ToolError(f"{host!r} is not a public host; only pages of the public internet can be fetched.")
        return addresses[0]


def _parse(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise ToolError(f"{text!r} is not an address.") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ToolError(f"{text!r} is not an http or https address.")
    if url.port is not None and not 0 < url.port < 2**16:
        raise ToolError(f"{text!r} names a port that there cannot be.")
    if url.userinfo:
        raise ToolError("An address with a user or password in it is not fetched.")
    return url
