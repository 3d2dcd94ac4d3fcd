"""The core's stand-in where it has no HTTP: `python -m chaos.processes.news_reader NAME FOLDER` reads `fleet.wakeups.completions` of all conversations.

Each news may come again, and what it does about it is a row in the core's table. As the core, it is slow at times, and leaves
its loop at times; at SIGUSR1 it ends at its next act, before the news are done with.
"""

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from pathlib import Path

from chaos.processes.core import CRASHED, Broken, pause
from chaos.processes.job_agent import CONVERSATIONS, conversation_id
from chaos.records.acts import INSERT, Act, act_on, database_of
from toolfleet import ToolFleet, WakeUp

READY = "news reader ready"
_LOCKED_SECONDS = 20  # with a frozen reader in between


class Reader:
    """Of all conversations, under one name."""

    def __init__(self, name: str, fleet: ToolFleet, database: Path) -> None:
        self._name = name
        self._fleet = fleet
        self._database = database
        self._crashes_next = False

    def crash_next(self) -> None:
        """End at the next act."""
        self._crashes_next = True

    async def read(self, conversation: str) -> None:
        """For ever; whenever it has left its loop, from where it was."""
        while True:
            news = self._fleet.wakeups.completions(conversation, consumer=self._name)
            async with contextlib.aclosing(news):
                with contextlib.suppress(Broken):
                    async for wake in news:
                        await pause()
                        await asyncio.to_thread(self._write, act_on(wake, _path_of(wake)))
                        if self._crashes_next:
                            os._exit(CRASHED)
                        await pause()

    def _write(self, act: Act) -> None:
        with contextlib.closing(sqlite3.connect(self._database, timeout=_LOCKED_SECONDS)) as connection, connection:
            connection.execute(INSERT, {"act": act.text()})


def _path_of(wake: WakeUp) -> str:
    """Where the core would have been told."""
    return "/notify" if wake.wake_id.endswith(".notify") else "/continue"


async def main(name: str, folder: Path) -> None:
    async with ToolFleet() as fleet:
        reader = Reader(name, fleet, database_of(folder))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, reader.crash_next)
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(reader.read(conversation_id(number))) for number in range(CONVERSATIONS)]
            loop.add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in reading])
            print(READY, flush=True)  # noqa: T201 - for who started us


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
