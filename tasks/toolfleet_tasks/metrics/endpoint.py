"""Answers `GET /metrics` of one process, from threads. Fails open: where it cannot listen, the log says so and the process works."""

import socketserver
from collections.abc import Callable
from http import HTTPStatus

from toolfleet_registry.metrics.recorder import CONTENT_TYPE
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio.threaded_http import HttpReply, serve_tcp

PATH = "/metrics"

_PORTS = 16  # are tried: workers, gateways and hosts that share a machine share its settings

log = get_logger(__name__)


class MetricsEndpoint:
    """Answers with `text`, which any thread may call, at the first port that is free: the settings' one, or, unless it `is_exact`, one after it.

    Without a port it does nothing.
    """

    def __init__(self, settings: Settings, text: Callable[[], bytes], *, is_exact: bool = False) -> None:
        self._settings = settings
        self._ports = 1 if is_exact else _PORTS
        self._text = text
        self._server: socketserver.BaseServer | None = None
        self.port: int | None = None
        """Where it answers; `None`: nowhere."""

    def start(self) -> None:
        """Answer from now on."""
        first, address = self._settings.metrics_port, self._settings.metrics_address
        if first is None or self._server is not None:
            return
        reason = ""
        for port in range(first, min(first + self._ports, 2**16)):
            try:
                self._server = serve_tcp((address, port), self._answer)
            except OSError as exc:  # another process has it
                reason = str(exc)
                continue
            self.port = port
            log.info("metrics_answered", address=address, port=port)
            return
        log.error("metrics_not_answered", address=address, port=first, reason=reason)

    def close(self) -> None:
        """Answer no more. Takes a moment."""
        server, self._server, self.port = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _answer(self, path: str) -> HttpReply:
        if path != PATH:
            return HttpReply(HTTPStatus.NOT_FOUND, b"There is /metrics.\n")
        try:
            return HttpReply(HTTPStatus.OK, self._text(), CONTENT_TYPE)
        except Exception:  # a defect of ours: the scraper shall learn of it, and the log why
            log.exception("metrics_not_written")
            return HttpReply(HTTPStatus.INTERNAL_SERVER_ERROR, b"The metrics could not be written.\n")
