"""The bed itself: time that jumps, members that die, and a Redis that does not answer."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator

import pytest
from kombu.connection import Connection
from kombu.exceptions import LimitExceeded

from bed import clock, settling
from bed.fleet import Bed, until
from bed.loop import VirtualLoop
from bed.site import Site
from support.module_server import ModuleServer
from toolfleet import Caller, ToolCall
from toolfleet_cli.local.redis_server import LOOPBACK
from toolfleet_tasks.greenlet_bridge import Bridge

ECHO = ToolCall(tool_name="owls.echo")


def nap(seconds: float, tool: str = "owls.nap") -> ToolCall:
    return ToolCall(tool_name=tool, arguments={"seconds": seconds})


async def test_a_call_takes_its_time_and_no_other(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    before = clock.monotonic()
    result = await fleet.call(nap(20), owner, timeout=60)
    assert result.success
    assert 20 <= clock.monotonic() - before < 21


async def test_redis_shows_the_same_time(bed: Bed) -> None:
    for seconds in (0.1, 10, 100_000):
        await asyncio.sleep(seconds)
        told, micro = bed.ask("TIME")
        assert abs(int(told) + int(micro) / 1e6 - time.time()) < 1e-3


async def test_waits_that_are_over_together_end_in_the_order_in_which_they_began(bed: Bed) -> None:
    """Redis itself would end them in the order of its clients' addresses in memory."""
    connections = [bed.redis.client().connection_pool.get_connection() for _ in range(8)]
    began = [5, 2, 7, 0, 4, 1, 6, 3]
    for number in began:
        wait_and_tell = ("BRPOP", "nothing", "1.0"), ("RPUSH", "over", number)
        connections[number].send_packed_command(connections[number].pack_commands(wait_and_tell))
    await asyncio.sleep(2)
    assert bed.ask("LRANGE", "over", 0, -1) == [str(number) for number in began]
    bed.ask("DEL", "over")
    for connection in connections:
        connection.disconnect()


async def test_a_server_that_has_settled_has_ended_what_its_client_has_ended(bed: Bed) -> None:
    """A hundred times, as whether it already has is else for its speed to decide."""
    for _ in range(100):
        with socket.create_connection((LOOPBACK, bed.redis.port)) as connection:
            connection.sendall(b"PING\r\n")
            connection.shutdown(socket.SHUT_WR)
            settling.settle()
            assert connection.recv(100) == b"+PONG\r\n"
            connection.setblocking(False)
            assert connection.recv(100) == b""


def test_the_end_of_the_loop_closes_no_generator_of_a_killed_member() -> None:
    """As its process would not have: a generator's `finally` may write."""
    closed = list[str]()

    async def generate(name: str) -> AsyncIterator[str]:
        try:
            yield name
        finally:
            closed.append(name)

    async def hold(name: str) -> None:
        held = generate(name)
        await anext(held)
        await asyncio.Event().wait()

    async def play() -> None:
        member, own = Site("member"), asyncio.create_task(hold("the test's own"))
        member.start(hold("the member's"))
        await asyncio.sleep(1)
        member.kill()
        assert not own.done()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())
    assert closed == ["the test's own"]


async def test_a_killed_worker_says_nothing_more(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    await bed.serve(owls)
    worker = await bed.worker()
    fleet = await bed.agent()
    handle = await fleet.submit(nap(5, "owls.nap_once"), owner, timeout=30)
    await until(lambda: owls.running, "the module has the call")
    worker.kill()
    await until(lambda: owls.interrupted, "the module sees the connection end")
    await bed.worker()
    result = await handle.result(100)
    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")
    assert len(owls.requests) == 1


async def test_workers_that_start_at_once_each_fire_their_own_timers(
    bed: Bed, owls: ModuleServer, owner: Caller
) -> None:
    """What their module turns away comes again by them."""
    await bed.serve(owls)
    workers = await asyncio.gather(*(bed.worker(worker_concurrency=4) for _ in range(2)))
    fleet = await bed.agent()
    calls = [ToolCall(tool_name="owls.turn_away")] * 16
    results = await asyncio.wait_for(fleet.call_many(calls, owner, timeout=600), timeout=60)
    assert {result.error_code for result in results} == {"busy"}
    assert {result.audit.worker for result in results} == {f"celery@{worker.site.host}" for worker in workers}


async def test_who_is_stopped_twice_goes_on_when_told_once(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """As SIGSTOP has it: one that stands still cannot be stopped again."""
    await bed.serve(owls)
    worker = await bed.worker()
    fleet = await bed.agent()
    worker.site.pause()
    worker.site.pause()
    worker.site.resume()
    assert (await fleet.call(ECHO, owner)).success


@pytest.mark.parametrize("which", range(1, 8))
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
async def test_a_worker_that_dies_at_a_write(
    bed: Bed, owls: ModuleServer, owner: Caller, which: int, part: float
) -> None:
    await bed.serve(owls)
    worker = await bed.worker(visibility_timeout=3)
    fleet = await bed.agent()
    dead = worker.dies_at(which, part)
    handle = await fleet.submit(nap(0.02, "owls.nap_once"), owner, timeout=40)
    await dead.wait()
    await bed.worker(visibility_timeout=3)
    result = await handle.result(120)
    assert len(owls.requests) <= 1
    assert result.success or result.effect_state == "unknown"


async def test_a_frozen_redis_is_waited_for(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    assert (await fleet.call(ECHO, owner)).success
    bed.redis.freeze()
    asyncio.get_running_loop().call_later(2, bed.redis.thaw)
    before = clock.monotonic()
    assert (await fleet.call(ECHO, owner, timeout=30)).success
    assert clock.monotonic() - before >= 2


async def test_a_gateway_takes_calls_until_it_is_told_to_end(bed: Bed, owls: ModuleServer) -> None:
    await bed.serve(owls)
    await bed.worker()
    gateway = await bed.gateway()
    async with gateway.client() as client:
        answer = await client.post("/calls", json={"tool_name": "owls.nap", "arguments": {"seconds": 10}})
        assert answer.status_code < 300, answer.text
    gateway.site.send_signal(signal.SIGTERM)
    await until(lambda: all(task.done() for task in gateway.site.tasks), "it has ended")


async def test_a_disturbed_connection_is_got_over(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Late, cut, or half open: what is called ends well once it is whole again."""
    await bed.serve(owls)
    link = await bed.link(bed.redis.port)
    await bed.worker(redis_url=link.redis_url)
    fleet = await bed.agent()
    link.late_seconds = 0.2
    assert (await fleet.call(ECHO, owner, timeout=60)).success
    link.late_seconds = 0
    assert link.cut()
    assert (await fleet.call(ECHO, owner, timeout=60)).success
    link.loses_answers = True
    loop = asyncio.get_running_loop()
    loop.call_later(5, setattr, link, "loses_answers", False)
    loop.call_later(5, link.cut)
    assert (await fleet.call(ECHO, owner, timeout=60)).success


async def test_a_module_gets_a_request_twice(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    await bed.serve(owls)
    link = await bed.link(int(owls.url.rpartition(":")[2]))
    bed.given["module_services"] = {"owls": link.http_url}
    await bed.worker()
    fleet = await bed.agent()
    assert (await fleet.call(ECHO, owner)).success
    await link.repeat()
    await until(lambda: len(owls.requests) == 2, "the module has it again")
    assert len(set(owls.call_ids("echo"))) == 1


async def test_beat_has_its_tasks_sent_in_time(bed: Bed, owls: ModuleServer) -> None:
    """One a second, and no worker takes them."""
    await bed.serve(owls)
    await bed.beat()
    await asyncio.sleep(5)
    before = bed.ask("LLEN", "toolfleet.control")
    await asyncio.sleep(20)
    assert 18 <= bed.ask("LLEN", "toolfleet.control") - before <= 24


async def test_redis_restarts_with_its_data(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """At its port: a fleet connects again, and a call that has begun ends."""
    await bed.serve(owls)
    await bed.worker()
    fleet = await bed.agent()
    running = asyncio.create_task(fleet.call(nap(10), owner, timeout=60))
    await until(lambda: owls.running, "the module has the call")
    bed.redis.restart()
    assert (await running).success
    assert len(owls.requests) == 1


async def test_code_that_waits_for_a_connection_of_a_pool_lets_others_give_theirs_back(bed: Bed) -> None:
    pool = Connection(bed.redis.url).Pool(limit=1)
    held = pool.acquire()
    before = clock.monotonic()
    with pytest.raises(LimitExceeded):
        await Bridge(lambda: pool.acquire(block=True, timeout=5))
    assert 5 <= clock.monotonic() - before < 6
    asyncio.get_running_loop().call_later(30, held.release)
    assert await Bridge(lambda: pool.acquire(block=True)) is held
    assert 35 <= clock.monotonic() - before < 36
    pool.force_close_all()
