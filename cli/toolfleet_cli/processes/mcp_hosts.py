"""Serves each MCP server of a file by a process of its own, and starts one anew that has ended."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfleet_cli.console.output import say
from toolfleet_cli.local.child_processes import spawn, stop
from toolfleet_cli.local.stop_signals import StopRequested, stop_signals

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 15.0  # for a host to end its server
_BACK_OFF_SECONDS = (0.5, 30.0)  # before a host is started anew: at first, and at most
_LASTING_SECONDS = 60.0  # after which its end is the first one again


@dataclass(slots=True)
class _ServedServer:
    name: str
    command: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None
    begins_at: float = 0.0
    pause: float = _BACK_OFF_SECONDS[0]

    def watch(self) -> None:
        """Start it if it does not run, and its pause is over."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            say(f"{self.name}: its host has ended ({self.process.returncode}); another is started.")
            stop(self.process, patience_seconds=0)  # what it has left
            if now - self.begins_at > _LASTING_SECONDS:
                self.pause = _BACK_OFF_SECONDS[0]
            self.process, self.begins_at = None, now + self.pause
            self.pause = min(self.pause * 2, _BACK_OFF_SECONDS[1])
        if self.process is None and now >= self.begins_at:
            self.process, self.begins_at = spawn(self.command), now


def serve_file(file: Path, names: Sequence[str], options: Sequence[str], port: int) -> int:
    """Serve these servers of a file until a signal ends it; from `port` on, one port for each, if it is not 0. Returns the exit code."""
    program = [sys.executable, "-c", "from toolfleet_cli import main; main()", "host", "mcp"]
    served = [
        _ServedServer(name, [*program, name, "--config", str(file), "--port", str(port and port + number), *options])
        for number, name in enumerate(names)
    ]
    with stop_signals() as signals:
        try:
            while True:
                signals.check()
                for each in served:
                    each.watch()
                time.sleep(_POLL_SECONDS)
        except StopRequested:
            pass
        finally:
            running = [each.process for each in served if each.process is not None]
            for process in running:
                process.terminate()
            for process in running:
                stop(process, patience_seconds=_PATIENCE_SECONDS)
    return 0
