"""A module that sends letters and keeps a journal of them; from some moment on it takes calls and answers none, until it is mended."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.module_server import ModuleServer, Request, serve

LIMIT_SECONDS = 5
"""How long the tool may take."""


@dataclass
class HangingLetters:
    """`journal` has whom a letter was sent to, one name for each letter. While it `hangs` none is sent: who asks waits."""

    hangs: bool = False
    journal: list[str] = field(default_factory=list)
    module: ModuleServer = field(default_factory=lambda: ModuleServer("letters"))

    async def send(self, request: Request) -> dict[str, Any]:
        """Send one. Whoever has hung up meanwhile gets none: it is cancelled."""
        if self.hangs:
            await asyncio.Event().wait()
        to = request["arguments"]["to"]
        self.journal.append(to)
        return {"success": True, "result": f"sent to {to}"}


@contextmanager
def hanging_letters() -> Generator[HangingLetters]:
    """The module, which works at first."""
    letters = HangingLetters()
    letters.module.add(
        "send",
        letters.send,
        description="Sends a letter.",
        effect="once",
        parameters=[{"name": "to", "type": "string", "description": "Who gets it."}],
        timeout_seconds=LIMIT_SECONDS,
    )
    with serve(letters.module):
        yield letters
