"""Bounds what a request may be, by middleware around the app, and logs each request. The server has no scopes but those of HTTP."""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_gateway.auth.identity import read_credential
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_registry import metric_families, metrics
from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.calls import USER
from toolfleet_registry.metrics import OTHER, Recorder
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_MOST_DIGITS = 19

_ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"transfer-encoding",
        b"x-api-key",
    }
)
_CONTRADICTORY = (frozenset({b"content-length", b"transfer-encoding"}), frozenset({b"authorization", b"x-api-key"}))

_ANY = "*"

_HOST = re.compile(r"([^\s:/?#@\[\]]*|\[[0-9a-f:.]+\])(?::[0-9]*)?")  # RFC 3986, 3.2.2

ROUTE = "toolfleet.route"
"""The key in a request's scope of its path as the route has it, without ids."""

RequestCheck = Callable[[Scope], None]

ShownIds = Callable[[Caller], Mapping[str, str]]
"""Says how logs name a caller's user, by `user_id`; nothing where no profile hides that."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
_FAILED = 400
_LONGEST_PATH = 200  # characters: a path may be anything

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_SECURITY_HEADERS = frozenset(name for name, _ in _HEADERS)


class BodySize:
    """A limit of `most` bytes for the body; more is 413, as soon as that is known."""

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        for name, value in scope["headers"]:
            if name == b"content-length" and (len(value) > _MOST_DIGITS or int(value) > self._most):
                raise self._too_large()
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        await self._app(scope, bounded, send)

    def _too_large(self) -> Problem:
        return Problem(413, "body_too_large", f"The body is larger than {self._most} bytes.")


class BodyTime:
    """A body that is not complete `seconds` after it was first asked for is 408. How long the answer takes is not its matter."""

    def __init__(self, app: ASGIApp, *, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        give_up_at, is_complete = 0.0, False

        async def timed() -> Message:
            nonlocal give_up_at, is_complete
            if is_complete:
                return await receive()
            give_up_at = give_up_at or asyncio.get_running_loop().time() + self._seconds
            try:
                async with asyncio.timeout_at(give_up_at):
                    message = await receive()
            except TimeoutError:
                detail = f"The body did not arrive within {self._seconds:g} s."
                raise Problem(408, "body_too_slow", detail, retryable=True, closes=True) from None
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, timed, send)


class RequestChecks:
    """Makes these checks of each request before its body is read, in this order. A check raises `Problem`."""

    def __init__(self, app: ASGIApp, *, checks: Sequence[RequestCheck]) -> None:
        self._app, self._checks = app, checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        for check in self._checks:
            check(scope)
        await self._app(scope, receive, send)


def check_headers(scope: Scope) -> None:
    """Raise `Problem` (400) for headers that are repeated or contradictory."""
    seen = set[bytes]()
    for name, _ in scope["headers"]:
        if name in _ONCE:
            if name in seen:
                raise invalid_request(f"The header {name.decode()!r} comes twice.")
            seen.add(name)
    for pair in _CONTRADICTORY:
        if pair <= seen:
            one, other = sorted(name.decode() for name in pair)
            raise invalid_request(f"The headers {one!r} and {other!r} contradict each other.")


def host_check(hosts: Collection[str], paths: Collection[str] = ()) -> RequestCheck:
    """Make the check that `Host` names one of `hosts`, with any port: else 421. HTTP/1.1 requires one; without it 400.

    `paths` are answered for any name: health checks have none.
    """
    known = frozenset(host.lower() for host in hosts)

    def check(scope: Scope) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), None)
        if host is None:
            raise invalid_request("The request has no Host.")
        if _ANY not in known and scope["path"] not in paths and _host_name(host.decode("latin-1")) not in known:
            detail = "This gateway does not answer to the Host of the request."
            raise Problem(421, "wrong_host", detail, hint="TOOLFLEET_GATEWAY_HOSTS lists the names that it answers to.")

    return check


def _host_name(host: str) -> str:
    """Return the name in a `Host` header, without its port, in lower case; an IPv6 address keeps its brackets; "" for any other form."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""


def origin_check(origins: Collection[str], hosts: Collection[str]) -> RequestCheck:
    """Make the check that `Origin`, if there is one, is one of `origins`, or names a host of `hosts`: else 403. Programs send none."""
    known, names = {origin.lower().rstrip("/") for origin in origins}, {host.lower() for host in hosts}

    def allows(origin: str) -> bool:
        if _ANY in known or origin.rstrip("/") in known:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in {"http", "https"} and _host_name(parts.netloc) in names

    def check(scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"origin" and not allows(value.decode("latin-1").lower()):
                raise Problem(403, "wrong_origin", "Requests from this origin are not let in.")

    return check


def check_query(scope: Scope) -> None:
    """Raise `AuthRefused` (400) for a query with a secret, also where no authentication is needed."""
    if scope["query_string"]:
        read_credential((), scope["query_string"])


class AccessLog:
    """Logs requests. Successful ones to `quiet` paths are not logged: they come every second.

    `shown` says how to name a caller's user. If that is hidden, the path is logged without ids.
    """

    def __init__(self, app: ASGIApp, *, quiet: frozenset[str] = frozenset(), shown: ShownIds = lambda _: {}) -> None:
        self._app = app
        self._quiet, self._shown = quiet, shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        clock = asyncio.get_running_loop().time
        status, began_at = 0, clock()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if (calls := metrics.calls()) is not None:
                _count(calls.recorder, scope, status, clock() - began_at)
            if status >= _FAILED or scope["path"] not in self._quiet:
                self._say(scope, status, clock() - began_at)

    def _say(self, scope: Scope, status: int, seconds: float) -> None:
        who = scope.get("toolfleet.who")
        shown = {} if who is None else self._shown(who.caller)
        log.info(
            "request",
            method=scope["method"],
            path=scope.get(ROUTE, OTHER) if shown else scope["path"][:_LONGEST_PATH],
            status=status,
            ms=round(seconds * 1000, 1),
            user=None if who is None else shown.get(USER, who.caller.user_id),
            problem=scope.get("toolfleet.problem"),
        )


def _count(recorder: Recorder, scope: Scope, status: int, seconds: float) -> None:
    method, route = scope["method"] if scope["method"] in _METHODS else OTHER, scope.get(ROUTE, OTHER)
    recorder.count(metric_families.GATEWAY_REQUESTS, (method, route, str(status)))
    recorder.observe(metric_families.GATEWAY_REQUEST_SECONDS, (route,), seconds)


class SecurityHeaders:
    """Adds security headers; an answer's own ones, such as the `Cache-Control` of one with an `ETag`, stay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                said = _SECURITY_HEADERS.intersection(name for name, _ in headers)
                message["headers"] = [*headers, *(one for one in _HEADERS if one[0] not in said)]
            await send(message)

        await self._app(scope, receive, sending)
