"""The loop and the hub on one thread: neither starves the other, and neither waits in vain."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kombu.asynchronous.hub import Hub
from kombu.asynchronous.timer import Timer

from support.waiting import wait_until_sync
from toolfleet_workers.pool.hub_loop import HubLoop, PumpedPoller

PATIENCE_SECONDS = 5  # the hub by itself waits 10 s for a timer that is further away


@pytest.fixture
def hub() -> Iterator[Any]:
    hub: Any = Hub(Timer(max_interval=60))
    yield hub
    hub.close()


@pytest.fixture
def hub_loop(hub: Any) -> Iterator[HubLoop]:
    hub_loop = HubLoop()
    hub_loop.attach(hub)
    yield hub_loop
    hub_loop.close()


def turn_until_done(hub: Any, task: "asyncio.Task[Any]") -> None:
    started = time.monotonic()
    while not task.done():
        hub.run_once()
        assert time.monotonic() < started + PATIENCE_SECONDS


def test_a_coroutine_runs_while_the_hub_turns(hub: Any, hub_loop: HubLoop) -> None:
    """Its timers and its sockets wake the hub."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()
        await writer.wait_closed()

    async def talk() -> bytes:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line

    task = hub_loop.loop.create_task(talk())
    turn_until_done(hub, task)

    assert task.result() == b"hello\n"


def test_a_callback_of_the_loop_lets_the_hub_run_at_once(hub: Any, hub_loop: HubLoop) -> None:
    """What a coroutine hands to the hub does not wait for the hub's next timer, which is a minute away."""
    hub.call_later(60, lambda: None)
    done = hub_loop.loop.create_future()

    async def hand_over() -> None:
        hub.call_soon(done.set_result, None)
        await done

    task = hub_loop.loop.create_task(hand_over())
    turn_until_done(hub, task)


def test_a_busy_loop_leaves_the_hub_its_turns(hub: Any, hub_loop: HubLoop) -> None:
    """A coroutine that always has something to do is interrupted for the hub's callbacks."""
    turns: list[int] = []

    async def spin() -> None:
        while len(turns) < 3:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    task = hub_loop.loop.create_task(spin())
    hub.on_tick.add(lambda: turns.append(1))
    turn_until_done(hub, task)


def test_attaching_again_changes_nothing(hub: Any, hub_loop: HubLoop) -> None:
    """As after a reconnect without a new poller; with a new one the pump is on that one."""
    first = hub.poller
    hub_loop.attach(hub)
    assert hub.poller is first

    hub.reset()
    hub_loop.attach(hub)
    assert isinstance(hub.poller, PumpedPoller)
    task = hub_loop.loop.create_task(asyncio.sleep(0.01))
    turn_until_done(hub, task)


def test_a_signal_ends_the_wait(hub: Any, hub_loop: HubLoop) -> None:
    """The hub, which would have waited for seconds, comes back to see what the handler has noted."""
    hub.call_later(60, lambda: None)
    hub_loop.wake(after=0)
    hub.run_once()
    assert hub_loop.busy_since is not None

    noted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: noted.append(number))
    killer = threading.Thread(target=_signal_when_waiting, args=(hub_loop,))
    started = time.monotonic()
    try:
        killer.start()
        while not noted:
            hub.run_once()
            assert time.monotonic() < started + PATIENCE_SECONDS
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_pump_says_when_it_waits(hub_loop: HubLoop) -> None:
    """`busy_since` is the last tick while code runs, and `None` while the hub waits."""
    seen: list[float | None] = []

    class Poller:
        def poll(self, _timeout: float) -> None:
            seen.append(hub_loop.busy_since)

    started = time.monotonic()
    hub_loop.loop.call_soon(lambda: seen.append(hub_loop.busy_since))
    hub_loop.poll(Poller(), 0)

    ticked_at, waiting = seen
    assert ticked_at is not None
    assert ticked_at >= started
    assert waiting is None


def _signal_when_waiting(hub_loop: HubLoop) -> None:
    wait_until_sync(lambda: hub_loop.busy_since is None, "the hub waits")
    os.kill(os.getpid(), signal.SIGUSR1)
