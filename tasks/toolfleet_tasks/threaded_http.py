"""Answers `GET` requests from threads: a probe is answered even if the event loop stands still."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

_CLIENT_SECONDS = 2.0  # to send a request, which are a few bytes
_MOST_AT_ONCE = 16  # threads: who asks is one connection, now and then
_LONGEST_LINE, _MOST_LINES = 8192, 100  # of a request


class HttpReply(NamedTuple):
    """The reply to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain"


AnswerPath: TypeAlias = Callable[[str], HttpReply]
"""The answer to a GET of a path, without its query. Called from any thread."""


def serve_unix(path: str, answer: AnswerPath) -> socketserver.BaseServer:
    """Answer at a Unix socket, until `shutdown`. Raises `OSError`."""
    return _started(_UnixServer(path, answer))


def serve_tcp(address: tuple[str, int], answer: AnswerPath) -> socketserver.BaseServer:
    """Answer at an address, until `shutdown`. Raises `OSError`."""
    return _started(_TcpServer(address, answer))


def _started(server: socketserver.BaseServer) -> socketserver.BaseServer:
    threading.Thread(target=server.serve_forever, name="toolfleet-http", daemon=True).start()
    return server


class _Server(socketserver.ThreadingMixIn):
    """A thread for each client, up to a bound. Further clients are refused, and ask again."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 4 * _MOST_AT_ONCE
    answer: AnswerPath

    def __init__(self, address: Any, answer: AnswerPath) -> None:
        self.answer = answer
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        super().__init__(address, _Asked)  # type: ignore[call-arg] # that of its server

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)  # type: ignore[attr-defined] # as above

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the client has gone, or was too slow."""


class _UnixServer(_Server, socketserver.UnixStreamServer):
    pass


class _TcpServer(_Server, socketserver.TCPServer):
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], answer: AnswerPath) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, answer)


class _Asked(socketserver.StreamRequestHandler):
    timeout = _CLIENT_SECONDS

    def handle(self) -> None:
        words = self.rfile.readline(_LONGEST_LINE).split()
        for _ in range(_MOST_LINES):
            if self.rfile.readline(_LONGEST_LINE) in {b"\r\n", b"\n", b""}:
                break
        if len(words) < 2:  # noqa: PLR2004 - a method and a path
            return
        method, path = words[0], words[1].decode("latin-1").partition("?")[0]
        answer: AnswerPath = self.server.answer  # type: ignore[attr-defined] # ours
        is_read = method in {b"GET", b"HEAD"}
        reply = answer(path) if is_read else HttpReply(HTTPStatus.METHOD_NOT_ALLOWED, b"It is a GET.\n")
        status, body = reply.status, reply.body
        head = f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with contextlib.suppress(OSError):
            self.wfile.write(head.encode() + (b"" if method == b"HEAD" else body))
