"""Counts and times the requests of a host for Prometheus, and answers for them on a port of its own."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_registry.metrics import families, process_recorder
from toolfleet_registry.metrics.exposition import Exposition
from toolfleet_registry.metrics.recorder import Recorder
from toolfleet_registry.settings import Settings

_TIMED = "/execute"
_CUT_OFF = "0"  # in the place of a status: nobody was answered


class HostMetrics:
    """Those of one host that serves `module`."""

    def __init__(self, recorder: Recorder, module: str) -> None:
        self.recorder = recorder
        self._module = module

    def around(self, app: ASGIApp) -> ASGIApp:
        """The app, with its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            clock = asyncio.get_running_loop().time
            began_at, status = clock(), _CUT_OFF

            async def sending(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            try:
                await app(scope, receive, sending)
            finally:
                self.recorder.count(families.HOST_REQUESTS, (self._module, status))
                if scope["path"] == _TIMED:
                    self.recorder.observe(families.HOST_REQUEST_SECONDS, (self._module,), clock() - began_at)

        return counted

    async def sample(self) -> None:
        """Note how late the loop is, until cancelled."""
        from toolfleet_tasks.metrics.sampler import ProcessSampler  # noqa: PLC0415 - a host without metrics needs no tasks

        await ProcessSampler(self.recorder).keep()


@contextmanager
def host_metrics(settings: Settings | None, module: str) -> Generator[HostMetrics | None]:
    """Answer for them at the settings' port, if these name one; else there are none. Raises `SettingsError` without the library."""
    if settings is None or settings.metrics_port is None:
        yield None
        return
    from toolfleet_tasks.metrics.endpoint import MetricsEndpoint  # noqa: PLC0415 - as above

    recorder = process_recorder.start(most_names=settings.metrics_tools)
    endpoint = MetricsEndpoint(settings, Exposition(recorder).text)
    endpoint.start()
    try:
        yield HostMetrics(recorder, module)
    finally:
        endpoint.close()
        process_recorder.stop()
