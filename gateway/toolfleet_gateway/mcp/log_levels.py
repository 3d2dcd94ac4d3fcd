"""Knows which log messages a client wants: newer ones say it with each call, older ones once a session."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_gateway.mcp.client_request import Context
from toolfleet_gateway.mcp.view import KEEP_LOG_LEVEL, LOG_LEVEL
from toolfleet_registry.contracts.call_context import LOG_LEVELS, LogLevel, is_log_level
from toolfleet_registry.errors import FleetUnavailable


class LogLevels:
    """The log levels of one server's clients: of older ones in their sessions, or here of the one at the streams of this process."""

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
        try:
            await keep(params.level)
        except FleetUnavailable:
            raise MCPError(types.INTERNAL_ERROR, "The fleet's Redis does not answer.") from None
        return types.EmptyResult()

    def of(self, context: Context, meta: Mapping[str, Any]) -> LogLevel | None:
        """The level for a call. Raises `MCPError` for one that is none."""
        if types.PROTOCOL_VERSION_META_KEY in meta:
            return level_in(meta)
        if context.request is None:
            return self._own
        level: LogLevel | None = context.request.scope.get(LOG_LEVEL)
        return level


def level_in(meta: Mapping[str, Any]) -> LogLevel | None:
    """Return the level of a newer client's request. Raises `MCPError` for an unknown level."""
    level = meta.get(types.LOG_LEVEL_META_KEY)
    if level is None or is_log_level(level):
        return level
    raise MCPError(types.INVALID_PARAMS, f"{types.LOG_LEVEL_META_KEY} is one of {', '.join(LOG_LEVELS)}.")
