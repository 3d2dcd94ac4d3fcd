"""A line whose answers get lost when a test says so."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_tasks.redis_connection import Part, PipelinedConnection, RedisConnectionLost


@dataclass
class Gate:
    """An answer is lost when it has come, and the command is sent again when the gate opens."""

    lost: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


class GatedConnection(PipelinedConnection):
    """A line that loses an answer if told so; much may happen before the command is sent again."""

    gate: Gate | None = None  # for the next command

    async def execute(self, *command: Part, losses: int = 0) -> Any:
        """As every line's."""
        answer = await super().execute(*command, losses=losses)  # may raise that Redis does not know the script yet
        gate, self.gate = self.gate, None
        if gate is None:
            return answer
        gate.lost.set()
        await gate.opened.wait()
        return await super().execute(*command, losses=losses)

    def send_built(self, build: Callable[[], tuple[Part, ...]]) -> "asyncio.Future[Any]":
        """As every line's; who has sent the command sends it again."""
        sent, gate = super().send_built(build), self.gate
        self.gate = None
        return sent if gate is None else asyncio.ensure_future(self._lose(sent, gate))

    async def _lose(self, sent: "asyncio.Future[Any]", gate: Gate) -> Any:
        try:
            await sent
        except ResponseError:
            self.gate = gate
            raise
        gate.lost.set()
        await gate.opened.wait()
        raise RedisConnectionLost("the answer was lost", sent=True)
