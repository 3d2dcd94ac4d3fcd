"""Writes one log line a request: method, path, status, milliseconds and who; no query, no header, no body."""

import asyncio
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.decisions import USER
from toolfleet_registry.metrics import families, process_recorder
from toolfleet_registry.metrics.recorder import OTHER, Recorder
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

ROUTE = "toolfleet.route"
"""Of a request's scope: its path as the route has it, without anybody's ids."""

ShownIds = Callable[[Caller], Mapping[str, str]]
"""Says how logs name a caller's user, by `user_id`; nothing where no profile hides that."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
_FAILED = 400
_LONGEST_PATH = 200  # characters: a path may be anything


class AccessLog:
    """Logs requests. Successful ones to `quiet` paths are not logged: they come every second.

    `shown` says how to name a caller's user. If that is hidden, the path is logged without ids.
    """

    def __init__(self, app: ASGIApp, *, quiet: frozenset[str] = frozenset(), shown: ShownIds = lambda _: {}) -> None:
        self._app = app
        self._quiet, self._shown = quiet, shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
            if (calls := process_recorder.calls()) is not None:
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
    recorder.count(families.GATEWAY_REQUESTS, (method, route, str(status)))
    recorder.observe(families.GATEWAY_REQUEST_SECONDS, (route,), seconds)
