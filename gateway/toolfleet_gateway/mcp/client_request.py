"""Reads the facts of an MCP client's request: its view, its log level, what the client can be asked; and replays its body."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from starlette.types import Message, Receive

from toolfleet_gateway.mcp.view import KEEP_LOG_LEVEL, LOG_LEVEL, McpView
from toolfleet_registry.contracts.call_context import LOG_LEVELS, LogLevel, is_log_level
from toolfleet_registry.contracts.inputs import InputMethod, InputRequest
from toolfleet_registry.errors import FleetUnavailable

Context = ServerRequestContext[Any, Any]

ViewOf = Callable[[Context], McpView]
"""Returns the view of a request's client."""

_CAPABILITIES: Final[Mapping[InputMethod, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

_NOT_GIVEN: Final[Mapping[InputMethod, Mapping[str, Any]]] = {
    "elicitation/create": {"action": "cancel"},
    "roots/list": {"roots": []},
}
"""The answers of a client that has no user to ask, and no files."""

_MORE = "more_body"


class LogLevels:
    """The log levels of one server's clients: older clients have it in their sessions, the client of standard streams here."""

    def __init__(self) -> None:
        self._own: LogLevel | None = None

    async def set(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Answer `logging/setLevel`. Raises `MCPError`."""
        if context.request is None:
            self._own = params.level
            return types.EmptyResult()
        keep = context.request.scope.get(KEEP_LOG_LEVEL)
        if keep is None:
            raise MCPError(types.INVALID_REQUEST, "A log level is kept in a session: send its id.")
        with needing_redis():
            await keep(params.level)
        return types.EmptyResult()

    def of(self, context: Context, meta: Mapping[str, Any]) -> LogLevel | None:
        """Return the log level for a call. Raises `MCPError` for an invalid one."""
        if types.PROTOCOL_VERSION_META_KEY in meta:
            return level_in(meta)
        if context.request is None:
            return self._own
        level: LogLevel | None = context.request.scope.get(LOG_LEVEL)
        return level


@contextmanager
def needing_redis(then: str = "") -> Generator[None]:
    """Raise the protocol's error in place of `FleetUnavailable`; `then` says what the client can do."""
    try:
        yield
    except FleetUnavailable:
        raise MCPError(types.INTERNAL_ERROR, f"The fleet's Redis does not answer{then}.") from None


def level_in(meta: Mapping[str, Any]) -> LogLevel | None:
    """Return the level of a newer client's request. Raises `MCPError` for an unknown level."""
    level = meta.get(types.LOG_LEVEL_META_KEY)
    if level is None or is_log_level(level):
        return level
    raise MCPError(types.INVALID_PARAMS, f"{types.LOG_LEVEL_META_KEY} is one of {', '.join(LOG_LEVELS)}.")


def kinds_of(capabilities: Mapping[str, Any]) -> frozenset[InputMethod]:
    """Return the requests that a client with these capabilities takes."""
    return frozenset(method for method, name in _CAPABILITIES.items() if isinstance(capabilities.get(name), dict))


def takes_forms(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a client with these capabilities can have a person fill in a form; one that declares elicitation without details can."""
    declared = capabilities.get("elicitation")
    return isinstance(declared, dict) and (not declared or isinstance(declared.get("form"), dict))


def in_its_place(request: InputRequest) -> dict[str, Any] | None:
    """Return the answer in place of a client that cannot be asked; `None` if there is no such answer."""
    given = _NOT_GIVEN.get(request.method)
    return None if given is None else dict(given)


def capability_of(method: InputMethod) -> str:
    """Return the capability that a client would have to declare."""
    return _CAPABILITIES[method]


def again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body again, and then the client's further messages."""
    is_read = False

    async def receiving() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, _MORE: False}

    return receiving
