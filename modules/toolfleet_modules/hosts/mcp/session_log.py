"""Gives what a server logs in one session to the call that it is of, and has older servers log what callers want."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_registry.contracts.logs.log_message import LogLevel, LogMessage, is_heard, log_message_in
from toolfleet_registry.contracts.logs.log_sink import LogSink

_log = logging.getLogger("toolfleet.host")

_LEVEL_SECONDS = 5.0  # for an older server to take a log level

OnStray = Callable[[LogMessage], object]
"""Takes what a server logs of no call that anybody knows."""

# What comes on the stream of a request is handled in the request's context, through all of the SDK; whatever else comes is not.
_hears: ContextVar[LogSink | None] = ContextVar("toolfleet_mcp_log", default=None)


_NOBODY = LogSink("emergency", lambda _: None)


class SessionLog:
    """That of one session. `on_stray` takes what came on no stream of a call's."""

    def __init__(self, on_stray: OnStray) -> None:
        self._on_stray = on_stray
        self._least: LogLevel | None = None
        self._setting = asyncio.Lock()

    async def take(self, params: types.LoggingMessageNotificationParams) -> None:
        """Take a message that the SDK has read."""
        sink, message = _hears.get(), log_message_in(params.model_dump(mode="json", by_alias=True))
        if message is not None:
            (self._on_stray if sink is None else sink.pass_on)(message)

    @staticmethod
    @contextlib.contextmanager
    def heard_by(log: LogSink | None) -> Generator[None]:
        """Give what comes on the streams of requests that are sent meanwhile to `log`; `None`: nobody wants it."""
        hearing = _hears.set(log or _NOBODY)
        try:
            yield
        finally:
            _hears.reset(hearing)

    async def set_level(self, least: LogLevel, ask: Callable[[types.SetLevelRequest], Awaitable[Any]]) -> None:
        """Have the server log what is `least` or graver, unless it does so already.

        One that does not take it, or is silent for a while, is not asked again. Raises what else `ask` does.
        """
        async with self._setting:
            if self._least is not None and is_heard(least, self._least):
                return
            self._least = least
            try:
                async with asyncio.timeout(_LEVEL_SECONDS):
                    await ask(types.SetLevelRequest(params=types.SetLevelRequestParams(level=least)))
            except (MCPError, TimeoutError, ValidationError) as exc:
                _log.warning("A server does not set its log level: %s", type(exc).__name__)
