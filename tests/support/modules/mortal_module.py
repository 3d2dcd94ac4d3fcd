"""A module in a process of its own, to be killed and started again at the same address: `owls` with a tool of each effect.

As a program, `python mortal_module.py PORT JOURNAL`: of the standard library alone, so that it is back at once. It writes each
request's line down.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import Popen
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {"name": f"owls.{method}", "description": method, "parameters": [], "effect": effect}
    for method, effect in (("read", "read"), ("once", "once"), ("hang", "read"), ("fails", None))
]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    journal = Path()

    def do_GET(self) -> None:
        if self.path == "/manifest":
            self._answer(200, {"module_name": "owls", "description": "", "tools": TOOLS})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/execute":
            self._answer(404, {})
            return
        line = self._write_down(f" {self.headers['Idempotency-Key']}")
        if asked["tool_name"] == "owls.hang" and self.journal.read_text().count(line) == 1:
            threading.Event().wait()  # the first request for a call is never answered
        if asked["tool_name"] == "owls.fails":
            self._answer(500, {})
            return
        time.sleep(0.005)
        self._answer(200, {"tool_name": asked["tool_name"], "success": True, "result": "hu", "error": None})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        if status != 200 or self.command == "GET":
            self._write_down("")  # first: whoever has the answer finds it there, before what they ask next
        content = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} .\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self.wfile.write(head.encode() + content)

    def _write_down(self, more: str) -> str:
        line = f"{self.command} {self.path}{more}\n"
        with self.journal.open("a") as journal:
            journal.write(line)
        return line

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@dataclass
class MortalModule:
    """`name` and `url` as a test bed wants them."""

    port: int
    journal: Path
    name: str = "owls"
    process: Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self) -> list[str]:
        """Each that was answered or begun: method, path, and a call's id."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def start(self) -> None:
        """Have it come up; it takes a fraction of a second."""
        from toolfleet_modules.hosts.child_process import spawn  # the program shall be up at once

        self.process = spawn([sys.executable, "-I", __file__, str(self.port), self.journal])

    def kill(self) -> None:
        """As a crash does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def forget(self) -> None:
        """As a test bed asks."""
        self.journal.unlink(missing_ok=True)


@contextmanager
def mortal_module(folder: Path) -> Generator[MortalModule]:
    """One that runs, until it is killed."""
    from toolfleet_cli.local.redis_server import held_port

    with held_port() as port:
        module = MortalModule(port, folder / "owls.journal")
        module.start()
        try:
            yield module
        finally:
            module.kill()


if __name__ == "__main__":
    _Handler.journal = Path(sys.argv[2])
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
