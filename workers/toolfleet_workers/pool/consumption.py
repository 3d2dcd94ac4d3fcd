"""Decides which queues a running worker consumes: those of its modules, and none while its clock is too far off.

What it has begun goes on.
"""

from collections.abc import Iterable
from typing import Any

from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)


class ConsumedNames:
    """Names the queues that a worker consumes; between two connections to its broker, those that it had."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._names = tuple[str, ...]()

    def __call__(self) -> tuple[str, ...]:
        """Their names now. May be called in any thread."""
        task_consumer = getattr(getattr(self._worker, "consumer", None), "task_consumer", None)
        if task_consumer is not None:
            self._names = tuple(queue.name for queue in task_consumer.queues)
        return self._names


class Consumption:
    """Of the queues of the worker's modules; what operators have it consume beside them is theirs to end."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._is_stopped = False
        self._added = dict[str, Any]()

    @property
    def is_stopped(self) -> bool:
        """Whether it takes no calls. For any thread to read."""
        return self._is_stopped

    def stop_if(self, is_too_far: bool) -> None:  # noqa: FBT001 - it is what a watch is told
        """Take no calls while this machine's clock is too far off. May be called from any loop or thread, again and again."""
        consumer = self._worker.consumer
        if (is_too_far or self._is_stopped) and consumer is not None:
            consumer.call_soon(self._change, consumer, is_too_far)

    def add(self, queues: Iterable[Any]) -> None:
        """Consume these, kombu's queues, beside those that the worker was started for, and others that were added no more.

        May be called from any loop or thread, again and again: what is so already costs nothing.
        """
        wanted, consumer = {queue.name: queue for queue in queues}, self._worker.consumer
        if consumer is not None and wanted.keys() != self._added.keys():
            consumer.call_soon(self._follow, consumer, wanted)

    def _change(self, consumer: Any, is_stopped: bool) -> None:  # noqa: FBT001 - as above
        if not _is_connected(consumer):
            return  # between two connections, or at the worker's end: if there is a next look, it comes soon
        names = [*(queue.name for queue in consumer.app.conf.task_queues), *self._added]
        for name in names:
            if is_stopped and consumer.task_consumer.consuming_from(name):
                consumer.cancel_task_queue(name)
            elif not is_stopped:
                consumer.add_task_queue(name)
        if is_stopped != self._is_stopped:
            self._is_stopped = is_stopped
            if is_stopped:
                log.error("worker_takes_no_calls", hint="set this machine's clock (TOOLFLEET_MAX_CLOCK_OFFSET_SECONDS)")
            else:
                log.warning("worker_takes_calls_again")

    def _follow(self, consumer: Any, wanted: dict[str, Any]) -> None:
        if not _is_connected(consumer):
            return
        own = {queue.name for queue in consumer.app.conf.task_queues}
        for name, queue in wanted.items():
            if name not in self._added and name not in own:
                consumer.app.amqp.queues.add(queue)
                if not self._is_stopped:
                    consumer.add_task_queue(name)
        for name in self._added.keys() - wanted.keys() - own:
            if consumer.task_consumer.consuming_from(name):
                consumer.cancel_task_queue(name)
        self._added = wanted


def _is_connected(consumer: Any) -> bool:
    return consumer.task_consumer is not None and consumer.task_consumer.channel.connection is not None
