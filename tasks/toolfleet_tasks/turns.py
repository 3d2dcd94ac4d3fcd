"""Has calls wait for their turn: calls of a module whose tools have a `concurrency_key`, with the same value there.

Redis decides which call runs, as calls are let in, begin and end (`lua/turns.lua`). A call that waits is kept there with
its message, in no queue, and holds no slot. The end of a call passes its turn on: the next message goes to its queue, or
with another broker into an outbox, from which a worker publishes it. Workers also pass on the turns of calls that got lost.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import NotPublished, PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.admission import LEAVE
from toolfleet_tasks.queues import queue_for
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost, run, run_durably
from toolfleet_tasks.scripts import script
from toolfleet_tasks.transport.publisher import REPUBLISH_SECONDS
from toolfleet_tasks.transport.redis_publisher import worker_publisher
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)

ENTER = script("turns/enter")
SWEEP = script("turns/sweep")

_SWEEP_SECONDS = 2.0
_MOST = 100  # lines and messages a script: Redis does nothing else meanwhile
_MOST_SCRIPTS = 100  # a sweep
_AGAIN_SECONDS = 2 * REPUBLISH_SECONDS  # until another worker publishes a message of the outbox


class WorkerTurns:
    """A worker's part in the turns of calls. Belongs to the worker's loop."""

    def __init__(self, here: WorkerRuntime, app: Any) -> None:
        settings: Settings = app.settings
        self._connection: PipelinedConnection = here.to(str(settings.redis_url), master=settings.sentinel_master)
        self._app, self._keys = app, settings.keys
        self._is_here = settings.broker == settings.redis_url
        self._woken = asyncio.Event()

    async def wait(self, call: PublishedCall, message: str) -> bool:
        """Have a call without its turn take it, or wait for it in its line with its message.

        Returns whether it waits: then its message that has come here is done with.
        """
        if call.turn is None:
            return False
        parameters = ENTER.parameters(
            record=self._keys.call(call.call_id),
            base=self._keys.begin,
            call_id=call.call_id,
            job_id=call.job_id or "",
            line=call.turn.line,
            limit=call.turn.limit,
            deadline_ms=round(call.deadline_at * 1000),
            now_ms=round(fleet_clock.now() * 1000),
            queue=self._keys.queue(queue_for(call)),
            place="here" if self._is_here else "elsewhere",
            message=message,
        )
        return bool(await run_durably(self._connection, ENTER, parameters, size=len(message)) == b"waits")

    async def leave(self, call: PublishedCall) -> None:
        """Pass on the turn of a call that has ended, and whose module has said so. Raises nothing."""
        names = {"record": self._keys.call(call.call_id), "base": self._keys.begin, "call_id": call.call_id}
        with contextlib.suppress(RedisConnectionLost, ResponseError):
            await run_durably(self._connection, LEAVE, LEAVE.parameters(**names))
        self.passed()

    def passed(self) -> None:
        """Note that the turn of a call may have passed on: with another broker the next one's message is to be published."""
        if not self._is_here:
            self._woken.set()

    async def keep(self) -> None:
        """Pass on the turns that were lost, and publish what the outbox has, until cancelled. Raises nothing."""
        while True:
            try:
                if self._connection.is_connected:
                    await self._sweep()
            except (RedisConnectionLost, ResponseError, NotPublished, PublishUnconfirmed) as exc:
                log.warning("turns_not_passed_on", error=str(exc))
            except Exception:  # a defect of ours: without this loop the turns of lost calls would stay where they are
                log.exception("turns_not_passed_on")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._woken.wait()
            self._woken.clear()

    async def _sweep(self) -> None:
        for _ in range(_MOST_SCRIPTS):
            parameters = SWEEP.parameters(
                lines=self._keys.lines,
                outbox=self._keys.line_outbox,
                base=self._keys.begin,
                now_ms=round(fleet_clock.now() * 1000),
                most=_MOST,
                again_ms=round(_AGAIN_SECONDS * 1000),
            )
            is_more, *messages = await run(self._connection, SWEEP, parameters)
            await self._publish(messages)
            if not is_more:
                break

    async def _publish(self, messages: Sequence[bytes]) -> None:
        """Publish messages of the outbox; where one fails, the others are there again at once."""
        left = list(messages)
        try:
            while left:
                kept = left.pop(0)
                queue, _, message = kept.decode().partition(" ")
                name = queue.removeprefix(self._keys.prefix)
                await worker_publisher(self._app).put(message, name, seconds=REPUBLISH_SECONDS)
                await self._connection.send("ZREM", self._keys.line_outbox, kept)
        except (NotPublished, PublishUnconfirmed):
            if left:
                again = [part for one in left for part in (0, one)]
                await self._connection.send("ZADD", self._keys.line_outbox, "XX", *again)
            raise
