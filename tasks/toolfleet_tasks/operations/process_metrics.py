"""Answers for one process's own metrics, from threads, and notes how late its loop and Redis are."""

import asyncio
import socketserver
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from toolfleet_registry import metric_families, metrics
from toolfleet_registry.metrics import CONTENT_TYPE, Exposition, RecordedMetrics, Recorder
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.threaded_http import HttpReply, serve_tcp

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = get_logger(__name__)

PATH = "/metrics"

_PORTS = 16  # are tried: workers, gateways and hosts that share a machine share its settings

_BEAT_SECONDS = 1.0


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


class ProcessSampler:
    """Samples the loop that it runs on, and the connection that its calls use, if there is one."""

    def __init__(self, recorder: Recorder, connection: PipelinedConnection | None = None) -> None:
        self._recorder = recorder
        self._connection = connection
        self._asked: asyncio.Future[object] | None = None

    async def keep(self) -> None:
        """Measure until cancelled. Waits for no answer of Redis: while one is missing, no further question is asked."""
        clock = asyncio.get_running_loop().time
        while True:
            due_at = clock() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            self._recorder.observe(metric_families.LOOP_LAG, (), max(clock() - due_at, 0.0))
            self._ask(clock())

    def _ask(self, now: float) -> None:
        connection = self._connection
        if connection is None or not connection.is_connected or (self._asked is not None and not self._asked.done()):
            return
        self._asked = connection.send("PING")
        self._asked.add_done_callback(lambda answer: self._answered(answer, now))

    def _answered(self, answer: "asyncio.Future[object]", asked_at: float) -> None:
        if not answer.cancelled() and answer.exception() is None:
            seconds = answer.get_loop().time() - asked_at
            self._recorder.observe(metric_families.REDIS_ROUND_TRIP, (), seconds)


class AgentMetrics:
    """The metrics of a fleet's client in this process. `where`: a port, a registry, or `None`: then it does nothing."""

    def __init__(self, settings: Settings, where: "int | CollectorRegistry | None") -> None:
        self._settings = settings
        self._where = where
        self._opened = 0
        self._collector: RecordedMetrics | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._sampling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Count from now on, and answer. Raises `SettingsError` without `prometheus_client`; a port that another has is logged."""
        if self._where is None:
            return
        self._opened += 1
        if self._opened > 1:
            return
        recorder = metrics.start()
        try:
            self._answer(recorder, self._where)
        except BaseException:
            metrics.stop()
            self._opened = 0
            raise
        self._sampling = asyncio.create_task(ProcessSampler(recorder).keep(), name="toolfleet-metrics")

    async def close(self) -> None:
        """The last of those who have started it answers no more. Takes a moment, raises nothing."""
        if self._opened == 0:
            return
        self._opened -= 1
        if self._opened > 0:
            return
        sampling, self._sampling = self._sampling, None
        if sampling is not None and sampling.get_loop() is asyncio.get_running_loop():
            await end([sampling])
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)
        elif not isinstance(self._where, int | None) and self._collector is not None:
            self._where.unregister(self._collector)
        metrics.stop()

    def _answer(self, recorder: Recorder, where: "int | CollectorRegistry") -> None:
        if isinstance(where, int):
            own = self._settings.model_copy(update={"metrics_port": where})
            self._endpoint = MetricsEndpoint(own, Exposition(recorder).text, is_exact=True)
            self._endpoint.start()
        else:
            self._collector = RecordedMetrics(recorder)
            where.register(self._collector)
