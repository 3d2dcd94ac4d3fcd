"""A line whose answers get lost when a test says so."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from toolfleet_tasks.redis_connection import Part, PipelinedConnection


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
