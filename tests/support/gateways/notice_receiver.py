"""Hears of approvals as an outside system does: a real server, which verifies what comes and keeps it."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError


@dataclass
class NoticeReceiver:
    """`notices`: id and body of each that it has accepted. It answers the next `refusing` with 503, and keeps their ids in `refused`."""

    secret: str
    url: str = ""
    notices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    refusing: int = 0
    unsigned: int = 0

    def of(self, approval_id: str) -> list[str]:
        """What it has heard of one approval, in the order of the events."""
        return [body["type"] for _, body in sorted(self.about(approval_id), key=_order)]

    def about(self, approval_id: str) -> list[tuple[str, dict[str, Any]]]:
        """All of one approval."""
        return [each for each in self.notices if each[1]["data"]["id"] == approval_id]

    def take(self, headers: dict[str, str], data: bytes) -> int:
        """The status of its answer."""
        try:
            Webhook(self.secret).verify(data, headers)
        except WebhookVerificationError:
            self.unsigned += 1
            return 401
        if self.refusing > 0:
            self.refusing -= 1
            self.refused.append(headers["webhook-id"])
            return 503
        self.notices.append((headers["webhook-id"], json.loads(data)))
        return 200


@contextmanager
def hearing(secret: str) -> Generator[NoticeReceiver]:
    """One that listens."""
    receiver = NoticeReceiver(secret)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(receiver.take({name.lower(): value for name, value in self.headers.items()}, data))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """A test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/approvals"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _order(notice: tuple[str, dict[str, Any]]) -> tuple[int, ...]:
    return tuple(int(part) for part in notice[0].split("-"))
