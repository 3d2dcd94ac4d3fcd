"""An agent's core that takes every wake-up, and keeps the headers of each."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from support.traces.otlp_receiver import served


@dataclass
class Core:
    """`headers`: those of each wake-up, by names in lower case."""

    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def woken_core() -> Generator[Core]:
    """The core, on a free port of loopback."""
    core = Core()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            core.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with served(Handler) as core.url:
        yield core
