"""The processes of a run: started, killed, frozen and started again, and noticed when they end by themselves."""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import psutil

from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_modules.hosts.guard import signal_group

_START_SECONDS = 60  # all of them share two cores with whatever else runs there
_STOP_SECONDS = 15
_POLL_SECONDS = 0.02


@dataclass
class Program:
    """One process at a time, all with the same log. `lock` belongs to whoever is doing something to it."""

    name: str
    command: Sequence[str]
    ready: str
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    process: Popen[bytes] | None = None
    started_at: float = 0
    """By monotonic time; of the present process."""
    _began_at: int = 0
    _was_up: bool = False

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Begin a process. To be called from the main thread: the kernel ends the child with the thread."""
        with self.log.open("ab") as output:
            self._began_at, self._was_up = output.tell(), False
            env, self.started_at = {**self.env, "PYTHONUNBUFFERED": "1"}, time.monotonic()
            self.process = spawn(self.command, env=env, cwd=self.folder, output=output)

    async def is_up(self) -> None:
        """Return once it has said that it is ready; `AssertionError` if it ends before, or takes a minute."""
        give_up_at = time.monotonic() + _START_SECONDS
        while not self._was_up and self.ready not in self.said():
            assert self.process is not None
            assert self.process.poll() is None, f"{self.name} ended at its start:\n{self.said()[-3000:]}"
            assert time.monotonic() < give_up_at, f"{self.name} is not ready:\n{self.said()[-3000:]}"
            await asyncio.sleep(_POLL_SECONDS)
        self._was_up = True

    def said(self) -> str:
        """The log of the present process."""
        with self.log.open("rb") as log:
            log.seek(self._began_at)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, to it and to all that it started."""
        assert self.process is not None
        self.process.kill()
        signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self, *, seconds: float) -> int | None:
        """Its exit code; `None` if it still runs after so long."""
        assert self.process is not None
        give_up_at = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < give_up_at:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(_POLL_SECONDS)
        return self.process.poll()

    def stop(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
            stop(self.process, patience_seconds=_STOP_SECONDS)

    def has_connection_from(self, port: int) -> bool:
        """Whether that port of this machine is this process's end of a connection."""
        try:
            connections = psutil.Process(self.pid).net_connections("tcp")
        except psutil.Error:
            return False
        return any(connection.laddr and connection.laddr.port == port for connection in connections)
