"""Sends requests to a service, each once, and reads its answers within bounds of time and size."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin

import httpx

from toolfleet_modules.hosts.openapi.calls.outgoing_request import OutgoingRequest
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.system.http_bodies import BodyReader
from toolfleet_registry.tracing.port import TRACEPARENT, carried

_CONNECT_SECONDS = 10.0
_CONNECT_PART = 0.9  # of a call's time: that nothing was sent is said while the client still listens
_KEPT_SECONDS = 5.0  # that a connection without a request is kept: services close theirs a little later
# What a pool does for a request takes time for each of its connections: several small ones are much faster than a large one.
_POOLS, _CONNECTIONS, _KEPT = 16, 16, 4
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FOLLOWING = frozenset({"GET", "HEAD"})


class NothingSent(Exception):
    """No connection was made, so that nothing has happened. The message, a clause, says why."""


class AnswerMissing(Exception):
    """The request was sent, and no usable answer came: its effect is unknown. The message, a clause, says why."""


class AnswerUnreadable(Exception):
    """The service has answered with `status`, and what it says cannot be read. The message, a clause, says why."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """A service's answer. `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_redirect(self) -> bool:
        """Whether it redirects to another URL."""
        return self.status in _REDIRECTS and "location" in self.headers


class HttpSender:
    """Sends over connections that calls share. No cookie is kept, nothing of the environment is sent, and no URL is logged.

    `most_bytes`: of an answer, as sent and unpacked.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pools: list[_Pool] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the connections meanwhile, in the loop that runs."""
        limits = httpx.Limits(
            max_connections=_CONNECTIONS, max_keepalive_connections=_KEPT, keepalive_expiry=_KEPT_SECONDS
        )
        # A client around a transport would log each URL, with a key that is in its query.
        certificates = httpx.create_ssl_context(trust_env=False)
        async with AsyncExitStack() as stack:
            for _ in range(_POOLS):
                transport = httpx.AsyncHTTPTransport(verify=certificates, trust_env=False, limits=limits)
                self._pools.append(_Pool(await stack.enter_async_context(transport)))
            try:
                yield
            finally:
                self._pools = []

    async def send(self, request: OutgoingRequest, *, seconds: float, may_begin: Callable[[], bool]) -> ServiceAnswer:
        """The answer, within `seconds`; a redirect is followed within its origin, of a GET or HEAD.

        Raises `NothingSent`, `AnswerMissing`, `AnswerUnreadable` and `NotBegun`.
        """
        sending = asyncio.ensure_future(self._followed(request, seconds, may_begin))
        sending.add_done_callback(_retrieve_error)
        try:
            done, _ = await asyncio.wait([sending], timeout=seconds)
            if not done:
                raise AnswerMissing(f"no answer came within {seconds:g} s")
            return sending.result()
        finally:
            sending.cancel()  # once only: another one while the HTTP library closes the connection would leave it open

    async def _followed(self, request: OutgoingRequest, seconds: float, may_begin: Callable[[], bool]) -> ServiceAnswer:
        url, answer = request.url, await self._sent(request, request.url, seconds, may_begin)
        for _ in range(_MOST_REDIRECTS):
            is_followed = answer.is_redirect and request.method in _FOLLOWING
            target = within_origin(url, answer.headers["location"]) if is_followed else None
            if target is None:
                break
            url = target
            answer = await self._sent(request, url, seconds, may_begin)
        return answer

    async def _sent(
        self, request: OutgoingRequest, url: str, seconds: float, may_begin: Callable[[], bool]
    ) -> ServiceAnswer:
        if not self._pools:
            raise NothingSent("its host is not running")
        connect = min(_CONNECT_PART * seconds, _CONNECT_SECONDS)
        headers = {"Accept-Encoding": "gzip", "User-Agent": "toolfleet", **request.headers}
        if (trace := carried()) is not None and not any(name.lower() == TRACEPARENT for name in headers):
            headers |= trace.headers
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        timeouts = {"connect": connect, "pool": connect}  # the rest is bounded as a whole
        try:
            made = httpx.Request(
                request.method, url, headers=encoded, content=request.body or None, extensions={"timeout": timeouts}
            )
            if not may_begin():
                raise NotBegun
            with min(self._pools, key=lambda pool: pool.in_flight).taken() as transport:
                response = await transport.handle_async_request(made)
                try:
                    return await self._read(request.method, response)
                finally:
                    await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NothingSent("there is no connection to it") from None
        except httpx.PoolTimeout:
            raise NothingSent("all connections to it are in use") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError):
            raise NothingSent("its request cannot be sent") from None
        except httpx.HTTPError as exc:
            raise AnswerMissing(f"the connection was lost ({type(exc).__name__})") from None

    async def _read(self, method: str, response: httpx.Response) -> ServiceAnswer:
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            reader = BodyReader(
                self._most_bytes,
                encoding=headers.get("content-encoding", ""),
                announced=headers.get("content-length", "") if method != "HEAD" else "",
            )
            async for chunk in response.aiter_raw():
                reader.feed(chunk)
            body = reader.finish()
        except (BodyTooLarge, BodyUnreadable) as exc:
            raise AnswerUnreadable(response.status_code, str(exc)) from None
        except httpx.HTTPError as exc:
            raise AnswerMissing(f"the connection was lost in its answer ({type(exc).__name__})") from None
        return ServiceAnswer(response.status_code, headers, body)


def _retrieve_error(sending: "asyncio.Future[ServiceAnswer]") -> None:
    """Retrieve its error, as asyncio logs one that is not retrieved. The call may be over by then."""
    if not sending.cancelled():
        sending.exception()


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncHTTPTransport
    in_flight: int = 0

    @contextmanager
    def taken(self) -> Generator[httpx.AsyncHTTPTransport]:
        self.in_flight += 1
        try:
            yield self.transport
        finally:
            self.in_flight -= 1


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port, of which the usual one is `None`."""
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def within_origin(url: str, location: str) -> str | None:
    """Return where a redirect leads, if that is the same origin."""
    try:
        target = urljoin(url, location)
        return target if origin_of(target) == origin_of(url) and not httpx.URL(target).userinfo else None
    except (httpx.InvalidURL, ValueError):
        return None
