"""Notes once a second how late the event loop is, and how long Redis takes to answer."""

import asyncio

from toolfleet_registry.metrics import families
from toolfleet_registry.metrics.recorder import Recorder
from toolfleet_tasks.redis.connection import PipelinedConnection

_BEAT_SECONDS = 1.0


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
            self._recorder.observe(families.LOOP_LAG, (), max(clock() - due_at, 0.0))
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
            self._recorder.observe(families.REDIS_ROUND_TRIP, (), seconds)
