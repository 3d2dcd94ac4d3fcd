"""Joins and leaves channels of Redis: all of one tick of the loop with one command."""

import asyncio
import functools
from collections.abc import Callable

from toolfleet_tasks.redis.connection import Part, PipelinedConnection

_CHUNK = 500  # channels a command


class ChannelSubscriptions:
    """What one connection subscribes to. `is_wanted`: whether anybody waits for a channel that was left in this tick."""

    def __init__(self, connection: PipelinedConnection, is_wanted: Callable[[bytes], bool]) -> None:
        self._connection = connection
        self._is_wanted = is_wanted
        self._joining: list[bytes] | None = None  # of a command that has not left
        self._leaving: list[bytes] = []

    def subscribe(self, channel: bytes) -> None:
        """Hear of a channel before whatever is sent over the connection from now on is answered.

        A command for each would have to be packed here and read there, for each call.
        """
        joining = self._joining
        if joining is None or len(joining) == _CHUNK:
            joining = self._joining = []
            self._connection.tell_built(functools.partial(self._close, joining))
        joining.append(channel)

    def unsubscribe(self, channel: bytes) -> None:
        """Hear of it no more, soon."""
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self._leave)
        self._leaving.append(channel)

    def subscribe_again(self, channels: list[bytes]) -> None:
        """Subscribe to all of these over a new connection, before anything else is sent over that."""
        self._joining = None  # it was for the connection before
        for start in range(0, len(channels), _CHUNK):
            self._connection.tell("SUBSCRIBE", *channels[start : start + _CHUNK])

    def _close(self, joining: list[bytes]) -> tuple[Part, ...]:
        if self._joining is joining:
            self._joining = None
        return ("SUBSCRIBE", *joining)

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        if channels := [channel for channel in leaving if not self._is_wanted(channel)]:
            self._joining = None  # who comes back now must not be in a command that leaves before this one
            self._connection.tell("UNSUBSCRIBE", *channels)
