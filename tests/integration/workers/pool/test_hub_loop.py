"""The loop and its guest, the hub, on one thread: neither starves the other, and neither waits in vain."""

import asyncio
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from celery.exceptions import WorkerShutdown
from kombu.asynchronous.hub import Hub
from kombu.asynchronous.timer import Timer

from support.waiting import wait_until_sync
from toolfleet_registry.system import machine_clock
from toolfleet_workers.pool.hub_loop import GuestPoller, HubLoop, _WorkerSelector

PATIENCE_SECONDS = 5  # the hub by itself waits 10 s for a timer that is further away


@pytest.fixture
def hub() -> Iterator[Any]:
    hub: Any = Hub(Timer(max_interval=60))
    hub.call_later(60, lambda: None)
    yield hub
    hub.close()


@pytest.fixture
def hub_loop(hub: Any) -> Iterator[HubLoop]:
    hub_loop = HubLoop()
    hub_loop.attach(hub)
    yield hub_loop
    hub_loop.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def turn_until(hub: Any, condition: Callable[[], object]) -> None:
    started = time.monotonic()
    while not condition():
        hub.run_once()
        assert time.monotonic() < started + PATIENCE_SECONDS


def turn_until_done(hub: Any, hub_loop: HubLoop, task: "asyncio.Task[Any]") -> None:
    task.add_done_callback(lambda _: hub_loop.wake())
    turn_until(hub, task.done)


def test_a_coroutine_runs_while_the_hub_waits(hub: Any, hub_loop: HubLoop) -> None:
    """Its timers and its sockets are the loop's own business: the hub turns once, to learn of the end."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()
        await writer.wait_closed()

    async def talk() -> bytes:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            fired = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, fired.set)
            await fired.wait()
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line

    turns: list[int] = []
    hub.on_tick.add(lambda: turns.append(1))
    task = hub_loop.loop.create_task(talk())
    turn_until_done(hub, hub_loop, task)

    assert task.result() == b"hello\n"
    assert len(turns) == 1


@pytest.mark.parametrize("way", ["soon", "later", "thread", "turn"])
def test_what_is_handed_to_the_hub_does_not_wait(hub: Any, hub_loop: HubLoop, way: str) -> None:
    """By a coroutine, another thread or a callback of the hub's own: the timer that the hub waits for is a minute away."""
    done = hub_loop.loop.create_future()

    async def hand_over() -> None:
        if way == "soon":
            hub.call_soon(done.set_result, None)
        elif way == "later":
            hub.call_later(0, done.set_result, None)
        elif way == "turn":
            hub.call_soon(hub.call_soon, done.set_result, None)
        else:
            threading.Thread(target=hub.call_soon, args=(done.set_result, None)).start()
        await done

    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(hand_over()))


def test_a_timer_that_a_turn_enters_is_waited_for(hub: Any, hub_loop: HubLoop) -> None:
    """A repeated one enters itself again while it fires: time must pass before the next turn."""
    turns: list[int] = []
    hub.on_tick.add(lambda: turns.append(1))
    hub.call_later(0, hub.call_later, 60, lambda: None)
    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(asyncio.to_thread(int)))

    assert len(turns) == 1


def test_timers_that_are_due_together_do_not_wait_for_each_other(hub: Any, hub_loop: HubLoop) -> None:
    """Kombu fires ten in a turn, and would wait for a second before the next ones."""
    fired: list[int] = []
    for number in range(100):
        hub.call_at(0, fired.append, number)
    turn_until(hub, lambda: len(fired) == 100)


def test_code_that_stops_the_loop_ends_no_wait(hub: Any, hub_loop: HubLoop) -> None:
    """A tool may think that the loop is its own."""

    async def stop() -> None:
        hub_loop.loop.stop()
        await asyncio.to_thread(int)

    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(stop()))


def test_after_a_long_callback_files_come_before_timers(
    hub_loop: HubLoop, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that has come in time is read before its time limit is looked at; turns that follow soon do without a look."""
    now = [100.0]
    monkeypatch.setattr(machine_clock, "monotonic", lambda: now[0])
    selector = _WorkerSelector()
    selector.register(pipe[0], selectors.EVENT_READ)
    assert selector.select(0) == []
    os.write(pipe[1], b"x")
    assert selector.select(0) == []
    now[0] += 0.05

    assert len(selector.select(0)) == 1
    selector.close()


def test_a_busy_loop_leaves_the_hub_its_turns(hub: Any, hub_loop: HubLoop, pipe: tuple[int, int]) -> None:
    """A coroutine that always has something to do is interrupted for the hub's callbacks, timers and files."""
    seen = set[str]()

    def read() -> None:
        os.read(pipe[0], 1)
        seen.add("file")

    async def spin() -> None:
        hub.add_reader(pipe[0], read)
        hub.call_later(0.01, seen.add, "timer")
        hub.call_soon(seen.add, "callback")
        os.write(pipe[1], b"x")
        while len(seen) < 3:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(spin()))


def test_a_busy_hub_leaves_the_loop_its_turns(hub: Any, hub_loop: HubLoop) -> None:
    """Callbacks that hand over the next one, as RabbitMQ's reader does while messages come, keep no coroutine waiting."""

    def spin() -> None:
        hub.call_soon(spin)

    spin()
    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(asyncio.to_thread(int)))


def test_a_file_that_the_hub_does_not_read_keeps_the_loop_from_nothing(
    hub: Any, hub_loop: HubLoop, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loop runs without its hub, the file is ready all the time, and is reported once."""
    woken: list[int] = []
    hub_loop.wake()
    hub.run_once()
    hub.add_reader(pipe[0], lambda: None)
    os.write(pipe[1], b"x")

    async def turn() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    monkeypatch.setattr(hub_loop, "wake", lambda: woken.append(1))
    hub_loop.run(turn())
    monkeypatch.undo()

    assert len(woken) == 1


def test_attaching_again_changes_nothing(hub: Any, hub_loop: HubLoop) -> None:
    """As after a reconnect without a new poller; a new one is watched instead, and the old one no more."""
    first = hub.poller
    hub_loop.attach(hub)
    assert hub.poller is first

    hub_loop.wake()
    hub.run_once()
    hub.reset()
    hub._loop = None  # as Celery makes a new one after a reset
    hub_loop.attach(hub)
    assert isinstance(hub.poller, GuestPoller)
    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(asyncio.to_thread(int)))


def test_errors_reach_who_turns_the_hub(hub: Any, hub_loop: HubLoop, pipe: tuple[int, int]) -> None:
    """A broken connection ends Celery's loop, and so does a shutdown that a coroutine raises; both can go on after it."""

    def fail() -> NoReturn:
        os.read(pipe[0], 1)
        raise ConnectionResetError

    async def shut_down() -> NoReturn:
        raise WorkerShutdown(3)

    hub.add_reader(pipe[0], fail)
    os.write(pipe[1], b"x")
    with pytest.raises(ConnectionResetError):
        hub.run_once()
    hub._loop = None  # the generator has ended with it
    task = hub_loop.loop.create_task(shut_down())
    with pytest.raises(WorkerShutdown, match="3"):
        hub.run_once()
    hub._loop = None
    assert isinstance(task.exception(), WorkerShutdown)
    turn_until_done(hub, hub_loop, hub_loop.loop.create_task(asyncio.sleep(0)))


def test_a_signal_ends_the_wait(hub: Any, hub_loop: HubLoop) -> None:
    """The hub, which would have waited for seconds, comes back to see what the handler has noted."""
    hub_loop.wake()
    hub.run_once()
    assert hub_loop.busy_since is not None

    noted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: noted.append(number))
    killer = threading.Thread(target=_signal_when_waiting, args=(hub_loop,))
    try:
        killer.start()
        turn_until(hub, lambda: noted)
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_loop_says_when_it_waits(hub: Any, hub_loop: HubLoop) -> None:
    """`busy_since` is the last look at the files while code runs, and `None` while the thread waits."""
    seen: list[float | None] = []
    started = time.monotonic()

    async def look() -> None:
        while hub_loop.busy_since is None or hub_loop.busy_since < started:  # noqa: ASYNC110 - a few turns do without
            await asyncio.sleep(0)
        seen.append(hub_loop.busy_since)

    task = hub_loop.loop.create_task(look())
    turn_until_done(hub, hub_loop, task)

    waker = threading.Thread(target=_wake_when_waiting, args=(hub_loop,))
    waker.start()
    hub.run_once()
    waker.join()
    assert hub_loop.busy_since is not None


def _signal_when_waiting(hub_loop: HubLoop) -> None:
    wait_until_sync(lambda: hub_loop.busy_since is None, "the loop waits")
    os.kill(os.getpid(), signal.SIGUSR1)


def _wake_when_waiting(hub_loop: HubLoop) -> None:
    wait_until_sync(lambda: hub_loop.busy_since is None, "the loop waits")
    hub_loop.loop.call_soon_threadsafe(hub_loop.wake)
