"""Adapts a kombu channel to the worker's connections: what it consumes comes in here."""

from collections.abc import Iterable, Sequence
from typing import Any

from celery.worker import state
from redis import Redis

from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.queues import queue_of
from toolfleet_tasks.transport.broadcast import Broadcasts
from toolfleet_tasks.transport.burst_fetcher import BurstFetcher
from toolfleet_tasks.transport.consumed_queues import ConsumedQueues
from toolfleet_tasks.transport.death_reports import write_note
from toolfleet_tasks.transport.fetched_claims import FetchedClaims
from toolfleet_tasks.transport.fetcher import Fetcher
from toolfleet_tasks.transport.leases import Leases, LeaseStore
from toolfleet_tasks.transport.notify_keys import NotifyKeys
from toolfleet_tasks.transport.quarantine import Quarantine
from toolfleet_tasks.transport.reservations import Capacity
from toolfleet_tasks.worker_runtime import WorkerRuntime


class ChannelAdapter:
    """Consumer of a fetcher and listener to broadcasts, on behalf of one of kombu's channels."""

    def __init__(self, channel: Any, runtime: WorkerRuntime) -> None:
        self._channel = channel
        self._runtime = runtime
        self._is_closed = False
        self._slots = runtime.slots
        self._consumed = ConsumedQueues(channel, runtime.resting)
        keys = Keys(channel.global_keyprefix)
        connection = runtime.to_broker()
        self.leases = runtime.part(_make_leases, channel, keys)
        self.fetcher = Fetcher(
            self,
            connection=connection,
            notify_keys=NotifyKeys(
                connection, lambda number: runtime.to_broker(f"bells {number}"), keys.notify_key("")
            ),
            leases=self.leases,
            quarantine=Quarantine(keys.quarantine, keys.quarantined),
            bounds={queue_of(name): Capacity(keys.running(name), bound) for name, bound in runtime.bounds.items()},
        )
        self._burst_intake = BurstFetcher(
            self,
            self.fetcher,
            connection=connection,
            blocking=runtime.to_broker("burst bell"),
            notify_prefix=keys.notify_key(""),
        )
        self.broadcasts = Broadcasts(self, connection=runtime.to_broker("broadcasts"), prefix=keys.prefix)
        runtime.listeners.append(self.broadcasts.take)
        runtime.resting.on_end.append(self.fetcher.wake)
        self._tasks = [
            runtime.loop.create_task(self.fetcher.run(), name="toolfleet-intake"),
            runtime.loop.create_task(self._burst_intake.run(), name="toolfleet-burst-intake"),
            runtime.loop.create_task(self.broadcasts.run(), name="toolfleet-broadcasts"),
        ]

    def update(self) -> None:
        """The channel consumes other queues, or listens to other topics, or the pool has another size, than before."""
        self._slots.resize(self._runtime.capacity())
        self.broadcasts.listen()
        self.fetcher.wake()

    def queues(self) -> Sequence[str]:
        """As the fetcher asks."""
        return self._consumed.names

    def capacity(self) -> int:
        """As the fetcher asks."""
        return self._slots.open

    def burst(self) -> tuple[Sequence[str], int]:
        """As the fetchers ask."""
        return ((), 0) if self._slots.open > 0 else self._slots.capacities_of(self.queues())

    def expect(self, count: int) -> None:
        """As the fetchers do."""
        self._slots.expect(count)

    def deliver(self, message: dict[str, Any], queue: str) -> None:
        """As the fetcher does. A queue that is consumed no longer, or not now, gets it back."""
        if queue in self._consumed:
            self._channel.connection._deliver(message, queue)  # noqa: SLF001
        else:
            self.leases.requeue([message["properties"]["delivery_tag"]], begun=False)

    def forget(self, tag: str) -> None:
        """As the fetcher does."""
        self._give_back(self._channel.qos._delivered.pop(tag, None))  # noqa: SLF001
        self.fetcher.wake()

    def delivered(self, message: Any) -> None:
        """The channel holds one message more."""
        if isinstance(message.headers.get("eta"), str):
            self._slots.defer(message.delivery_tag)
            return
        self._slots.take(message.delivery_info["routing_key"])
        if self._slots.open <= 0:
            self._burst_intake.begin()

    def let_go(self, message: Any) -> None:
        """The channel has done with a delivered message, or gives it back; `None` for one that it does not know."""
        if message is not None:
            self._give_back(message)
            self.fetcher.release_slot(message.delivery_info["routing_key"], message.headers["id"])
        self.fetcher.wake()

    def _give_back(self, message: Any) -> None:
        if message is None:
            return
        if self._slots.give_back(message.delivery_tag, message.delivery_info["routing_key"]):
            self._burst_intake.wake()

    def topics(self) -> Iterable[str]:
        """As the broadcasts ask."""
        channel = self._channel
        return [topic for queue in channel.active_fanout_queues for topic in channel._get_subscribe_topics(queue)]  # noqa: SLF001

    def hear(self, exchange: str, message: dict[str, Any]) -> None:
        """As the broadcasts do."""
        self._channel._deliver_fanout_message(message, exchange)  # noqa: SLF001

    def close(self) -> None:
        """Take no more. What Celery has dropped with the connection goes back; what runs goes on, under its lease."""
        if self._is_closed:
            return  # kombu closes a channel again whose first time has failed
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self._runtime.listeners.remove(self.broadcasts.take)
        self._runtime.resting.on_end.remove(self.fetcher.wake)
        if worker_runtime.current() is self._runtime:
            self.broadcasts.close()
            running = {request.message.delivery_tag for request in tuple(state.active_requests)}
            delivered = self._channel.qos._delivered  # noqa: SLF001
            dropped = set(delivered) - running
            for tag in dropped:
                self._give_back(delivered.pop(tag))
            self.leases.requeue(dropped, begun=False)

    def give_up(self, client: Redis) -> None:
        """For a worker that ends, whose connections are closed: settle with Redis over `client` what is still held."""
        leases = self.leases
        leases.close()
        unbegun = leases.unbegun
        given_back = leases.requeue_commands(unbegun, begun=False)
        given_back += leases.requeue_commands(leases.held - unbegun, begun=True)
        for command in (*leases.ack_commands(leases.acked), *given_back):
            client.execute_command(*command)


def _make_leases(runtime: WorkerRuntime, channel: Any, keys: Keys) -> Leases:
    """They outlive channels and connections."""
    unacked, index = channel.unacked_key, channel.unacked_index_key
    store = LeaseStore.of(keys, unacked=unacked, unacked_index=index, seconds=channel.visibility_timeout)
    leases = Leases(runtime.to_broker(), store, runtime.loop, runtime.part(FetchedClaims), name=runtime.name)
    write_note(runtime.name)  # before anything is held
    runtime.settle.append(leases.settled)
    runtime.leaving.append(leases.leave)
    leases.show_life(runtime.to_broker("broadcasts"))
    return leases
