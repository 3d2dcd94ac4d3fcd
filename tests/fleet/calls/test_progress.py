"""How far a running call is, on the whole way: from a module through a worker and Redis to whoever wants to know."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from select import select
from subprocess import PIPE, Popen

import pytest
from redis.asyncio import Redis

from support.command import run
from support.fleet import TestBed
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer, Request, serve
from support.waiting import PATIENCE_SECONDS, wait_until
from support.worker_process import TESTS, WorkerProcess
from toolfleet import Caller, CallHandle, Progress, SyncToolFleet, ToolCall, ToolFleet
from toolfleet_cli.commands import call
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server

STEPS = [(0.25, "reading"), (None, "thinking"), (0.75, "writing")]
TALK = ToolCall(tool_name="owls.talk")
SECRET = ToolCall(tool_name="owls.secret")
SECONDS = 30
TOOLFLEET = str(Path(sys.executable).with_name("toolfleet"))


def _balance(_: Request) -> bytes:
    return b'{"tool_name": "owls.secret", "success": true, "result": {"pin": "4711"}}'


@pytest.fixture(scope="module")
def talker() -> Talker:
    return Talker(STEPS)


@pytest.fixture(scope="module")
def owls(talker: Talker) -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    module.add("talk", talker, effect="read")
    module.add("once", talker, effect="once")
    module.add("liar", Talker([(0.5, "x")], lambda _: b"no reply"), effect="once")
    hidden = {"type": "object", "properties": {"pin": {"type": "string", "sensitive": True}}}
    module.add("secret", Talker(STEPS, _balance), effect="read", output_schema=hidden)
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    tools = {"local_tools": "support.local_tools.local_talkers:tools"}
    with redis_server(tmp_path_factory.mktemp("redis")) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), tools)


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess, talker: Talker) -> AsyncIterator[ToolFleet]:
    talker.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


async def all_of(handle: CallHandle, heard: list[Progress]) -> None:
    """Note all that the call says until it ends."""
    async with asyncio.timeout(SECONDS):
        async for progress in handle.progress():
            heard.append(progress)  # noqa: PERF401 - the test looks at it meanwhile


@pytest.mark.usual
async def test_a_caller_hears_each_step_and_then_the_end(fleet: ToolFleet, owner: Caller, talker: Talker) -> None:
    """The loop ends with the call, and the result is there."""
    handle = await fleet.submit(TALK, owner)
    heard: list[Progress] = []
    async for progress in handle.progress():
        heard.append(progress)
        talker.go_on()

    assert heard == [Progress(fraction=fraction, message=message) for fraction, message in STEPS]
    assert (await handle.result(SECONDS)).result == "done"
    assert [progress async for progress in handle.progress()] == []


async def test_a_call_tells_its_steps_to_a_function(fleet: ToolFleet, owner: Caller, talker: Talker) -> None:
    """In order, one after the other, async or plain; what it raises loses neither the next step nor the result."""
    heard: list[Progress] = []

    def plain(progress: Progress) -> None:
        talker.go_on()
        heard.append(progress)
        raise RuntimeError("the caller's own fault")

    async def slow(progress: Progress) -> None:
        talker.go_on()
        await asyncio.sleep(0)
        heard.append(progress)
        raise RuntimeError("the caller's own fault")

    for on_progress in (plain, slow):
        heard.clear()
        talker.forget()
        result = await fleet.call(TALK, owner, timeout=SECONDS, on_progress=on_progress)
        assert result.result == "done"
        assert heard == [Progress(fraction=fraction, message=message) for fraction, message in STEPS]


async def test_a_function_that_hangs_does_not_hold_the_result(fleet: ToolFleet, owner: Caller, talker: Talker) -> None:
    """The call comes back soon after its end; one that was refused tells nothing."""
    talker.go_on(len(STEPS))
    forever = asyncio.Event()
    result = await asyncio.wait_for(fleet.call(TALK, owner, on_progress=lambda _: forever.wait()), SECONDS)
    assert result.result == "done"

    heard: list[Progress] = []
    refused = await fleet.call(ToolCall(tool_name="owls.nothing"), owner, on_progress=heard.append)
    assert (refused.error_code, heard) == ("unknown_tool", [])


def test_a_program_without_a_loop_is_told_in_its_own_thread(
    bed: TestBed, worker: WorkerProcess, owner: Caller, talker: Talker
) -> None:
    """The same for `ToolFleet.sync()`, opened and closed by hand."""
    talker.forget()
    heard: list[tuple[Progress, threading.Thread]] = []

    def hear(progress: Progress) -> None:
        talker.go_on()
        heard.append((progress, threading.current_thread()))
        raise RuntimeError("the caller's own fault")

    fleet: SyncToolFleet = ToolFleet.sync(settings=bed.settings).open()
    try:
        result = fleet.call(TALK, owner, timeout=SECONDS, on_progress=hear)
    finally:
        fleet.close()
    assert result.result == "done"
    assert [progress.fraction for progress, _ in heard] == [fraction for fraction, _ in STEPS]
    assert {thread for _, thread in heard} == {threading.current_thread()}


async def test_the_status_says_it_too(fleet: ToolFleet, owner: Caller, talker: Talker) -> None:
    """A status is a plain text with the latest word of the call; at the end there is none any more."""
    handle = await fleet.submit(TALK, owner)
    async for progress in handle.progress():
        status = await handle.status()
        assert (status, status.progress) == ("running", progress)
        talker.go_on()

    assert (await handle.status(), (await handle.status()).progress) == ("done", None)


async def test_who_comes_late_hears_the_latest_first(
    bed: TestBed, fleet: ToolFleet, owner: Caller, talker: Talker
) -> None:
    """Also one of another agent, who has joined the call by its idempotency key."""
    call = ToolCall(tool_name="owls.talk", idempotency_key="late")
    first: list[Progress] = []
    second: list[Progress] = []
    handle = await fleet.submit(call, owner)
    follow = asyncio.create_task(all_of(handle, first))
    await wait_until(lambda: first, "the first step is heard")
    async with ToolFleet(settings=bed.settings) as other:
        joined = await other.submit(call, owner)
        follow_too = asyncio.create_task(all_of(joined, second))
        await wait_until(lambda: second, "the other agent hears it")
        assert joined.id == handle.id
        assert (await joined.status()).progress == Progress(fraction=0.25, message="reading")
        talker.go_on(3)
        await asyncio.gather(follow, follow_too)

    assert second[0] == first[0] == Progress(fraction=0.25, message="reading")
    assert talker.calls == 1


async def test_a_hundred_listeners_share_a_subscription(
    bed: TestBed, fleet: ToolFleet, owner: Caller, talker: Talker
) -> None:
    """Each hears; when all have gone, nobody is subscribed, and who leaves early harms nobody."""
    handle = await fleet.submit(TALK, owner)
    heard: list[list[Progress]] = [[] for _ in range(100)]
    tasks = [asyncio.create_task(all_of(handle, one)) for one in heard]
    await wait_until(lambda: all(heard), "all have heard of the first step")
    async with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        channel = bed.settings.keys.progress(handle.id)
        assert await redis.pubsub_numsub(channel) == [(channel, 1)]
        tasks[0].cancel()
        talker.go_on(3)
        await asyncio.gather(*tasks[1:])
        assert await redis.ttl(channel) > 0
        assert await redis.pubsub_numsub(channel) == [(channel, 0)]


async def test_a_tool_that_hides_its_results_is_not_quoted(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """Only the share is passed on: its words may hold what its result does."""
    talker = owls.tools["owls.secret"]
    assert isinstance(talker, Talker)
    handle = await fleet.submit(SECRET, owner)
    async for progress in handle.progress():
        assert progress.message == ""
        talker.go_on()
        if progress.fraction == 0.75:
            break

    assert (await handle.result(SECONDS)).success


async def test_a_module_that_talks_and_then_lies(fleet: ToolFleet, owner: Caller, owls: ModuleServer) -> None:
    """What it said was heard, its broken end is what the call comes to, and the loop has ended."""
    talker = owls.tools["owls.liar"]
    assert isinstance(talker, Talker)
    handle = await fleet.submit(ToolCall(tool_name="owls.liar"), owner)
    async for progress in handle.progress():
        assert progress.fraction == 0.5
        talker.go_on()

    result = await handle.result(SECONDS)
    assert (result.error_code, result.effect_state) == ("invalid_response", "unknown")


@pytest.mark.parametrize("tool", ["count", "compute"])
async def test_a_function_of_our_own_says_it_too(fleet: ToolFleet, owner: Caller, tmp_path: Path, tool: str) -> None:
    """From the loop or from a thread; one that says it in every turn of a loop is heard a few times a second."""
    end = tmp_path / "end"
    started_at = time.monotonic()
    handle = await fleet.submit(ToolCall(tool_name=f"local.{tool}", arguments={"until": str(end)}), owner)
    heard: list[Progress] = []
    async for progress in handle.progress():
        heard.append(progress)
        if len(heard) == 6:
            end.touch()
    seconds = time.monotonic() - started_at

    assert (await handle.result(SECONDS)).success
    assert all(one.message.startswith("at ") for one in heard)
    assert 6 <= len(heard) <= 6 * seconds + 1  # it says so twenty times a second, or as often as it can


async def test_a_cancelled_call_ends_the_loop(fleet: ToolFleet, owner: Caller, talker: Talker) -> None:
    """And so does leaving the fleet."""
    handle = await fleet.submit(TALK, owner)
    async for _ in handle.progress():
        await handle.cancel()

    assert (await handle.result(SECONDS)).error_code == "cancelled"


async def test_leaving_the_fleet_ends_the_loop(
    bed: TestBed, worker: WorkerProcess, owner: Caller, talker: Talker
) -> None:
    """Nobody waits for news that cannot come."""
    talker.forget()
    heard: list[Progress] = []
    async with ToolFleet(settings=bed.settings) as fleet:
        handle = await fleet.submit(TALK, owner, timeout=60)
        follow = asyncio.create_task(all_of(handle, heard))
        await wait_until(lambda: heard, "the first step is heard")
    await asyncio.wait_for(
        follow, PATIENCE_SECONDS
    )  # far sooner than the call's own end, which would end the loop as well
    talker.go_on(3)


def test_a_program_without_a_loop_hears_it(bed: TestBed, worker: WorkerProcess, owner: Caller, talker: Talker) -> None:
    """`for progress in handle.progress()` is the same, and may be left early."""
    talker.forget()
    with ToolFleet.sync(settings=bed.settings) as fleet:
        handle = fleet.submit(TALK, owner)
        for progress in handle.progress():
            assert progress.fraction == 0.25
            assert handle.status() == "running"
            break
        talker.go_on(3)
        list(handle.progress())
        assert handle.result(SECONDS).success


def on_a_terminal(bed: TestBed, *words: str) -> tuple[Popen[bytes], int]:
    """The command with a terminal as its stderr, and that terminal's other end."""
    ours, its_own = os.openpty()
    env = {**os.environ, **environment_of(bed.settings), "TERM": "xterm", "COLUMNS": "120"}
    process = Popen([TOOLFLEET, *words], stdout=PIPE, stderr=its_own, env=env)
    os.close(its_own)
    return process, ours


def test_the_command_shows_a_bar_on_a_terminal(bed: TestBed, worker: WorkerProcess, talker: Talker) -> None:
    """What the module says stands beside the bar; stdout has the result and nothing else."""
    talker.forget()
    process, terminal = on_a_terminal(bed, "call", "owls.talk")
    shown = b""
    for word, percent in ((b"reading", b"25%"), (b"thinking", b""), (b"writing", b"75%")):
        while word not in shown or percent not in shown:
            assert select([terminal], [], [], SECONDS)[0], shown
            shown += os.read(terminal, 2**16)
        talker.go_on()
    while process.poll() is None and select([terminal], [], [], SECONDS)[0]:
        with contextlib.suppress(OSError):  # its end
            os.read(terminal, 2**16)
    out, _ = process.communicate(timeout=SECONDS)
    os.close(terminal)

    assert (out, process.returncode) == (b"done\n", 0)


@pytest.mark.parametrize("options", [("--json",), ()])
def test_the_command_shows_no_bar_elsewhere(
    bed: TestBed, worker: WorkerProcess, talker: Talker, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a pipe, or for a program, there is the result only."""
    monkeypatch.setattr(call, "_PATIENCE_SECONDS", 0)  # a bar would be there with the first step
    talker.forget()
    talker.go_on(len(STEPS))
    ended = run("call", "owls.talk", *options, env=environment_of(bed.settings))

    assert ("done" in ended.out, ended.code, ended.err) == (True, 0, "")
