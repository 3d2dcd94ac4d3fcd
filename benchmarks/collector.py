"""Takes traces by OTLP over HTTP and throws them away, and asks for metrics every second: `python -m benchmarks.collector PORT METRICS_PORT`.

What a system does for traces and metrics is measured; what a collector does with them is not.
"""

import contextlib
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

_REST_SECONDS = 1.0  # Prometheus asks more rarely
_METRICS_SECONDS = 5.0


class Swallowing(BaseHTTPRequestHandler):
    """Answers that all is taken."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take a batch of spans."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def ask(port: int) -> None:
    """Ask for metrics, over and over, whether anybody has some or not."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        with (
            contextlib.suppress(OSError),
            opener.open(f"http://127.0.0.1:{port}/metrics", timeout=_METRICS_SECONDS) as it,
        ):
            it.read()
        time.sleep(_REST_SECONDS)


def main(port: int, metrics_port: int) -> None:
    """Serve until this process is ended."""
    Thread(target=ask, args=(metrics_port,), daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", port), Swallowing).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
