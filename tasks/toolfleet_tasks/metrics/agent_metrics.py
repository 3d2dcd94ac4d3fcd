"""Answers for an agent's metrics: on a port of its own, or in the registry that its program has already."""

import asyncio
from typing import TYPE_CHECKING

from toolfleet_registry.metrics import process_recorder
from toolfleet_registry.metrics.recorder import Exposition, RecordedMetrics, Recorder
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.metrics.endpoint import MetricsEndpoint
from toolfleet_tasks.metrics.sampler import ProcessSampler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
        recorder = process_recorder.start()
        try:
            self._answer(recorder, self._where)
        except BaseException:
            process_recorder.stop()
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
        process_recorder.stop()

    def _answer(self, recorder: Recorder, where: "int | CollectorRegistry") -> None:
        if isinstance(where, int):
            own = self._settings.model_copy(update={"metrics_port": where})
            self._endpoint = MetricsEndpoint(own, Exposition(recorder).text, is_exact=True)
            self._endpoint.start()
        else:
            self._collector = RecordedMetrics(recorder)
            where.register(self._collector)
