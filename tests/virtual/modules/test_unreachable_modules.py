"""Modules that a worker cannot reach, or nobody can for a moment: whose trouble it is, and what becomes of the calls."""

import asyncio
import gc
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from aiohttp import web

from bed import clock
from bed.fleet import Bed, until
from support.module_server import ModuleServer, Request
from support.modules.raw_modules import raw_module
from support.owls import echo
from support.programs.closed_port import closed_port
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.manifests.discovery import ManifestFailure, discover
from toolfleet_tasks.operations.fleet_status import read_status

READ, ONCE, HANG = (ToolCall(tool_name=f"owls.{method}") for method in ("read", "once", "hang"))


@pytest.fixture
def owls() -> ModuleServer:
    """The first request for its `hang` is never answered."""

    async def hang(_: Request) -> dict[str, Any]:
        if len(module.calls("hang")) == 1:
            await asyncio.Event().wait()
        return {"success": True}

    async def fail(_: Request) -> web.Response:
        return web.json_response({}, status=500)

    module = ModuleServer("owls")
    module.add("read", echo, effect="read")
    module.add("once", echo, effect="once")
    module.add("hang", hang, effect="read")
    module.add("fails", fail)
    return module


def port_of(module: ModuleServer) -> int:
    return int(module.url.rpartition(":")[2])


async def agent_that_knows_it(bed: Bed) -> ToolFleet:
    fleet = await bed.agent()
    assert (await fleet.modules.refresh())["owls"].ok
    return fleet


async def test_a_worker_that_is_cut_off_leaves_calls_to_others(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """What it could not send, another one does; the breaker of the module stays closed."""
    await bed.serve(owls)
    await bed.worker()
    await bed.worker(module_services={"owls": f"http://127.0.0.1:{closed_port()}"})
    fleet = await bed.agent()
    for _ in range(2):
        assert all(result.success for result in await fleet.call_many([READ] * 100, owner, timeout=60))

    assert not bed.ask("HEXISTS", bed.settings.keys.breaker("owls"), "open_until")


async def test_no_call_is_a_probe(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """A module that was away is asked for its health first; then a call that may be made once only is made."""
    await bed.serve(owls)
    await bed.worker()
    fleet = await agent_that_knows_it(bed)
    bed.ask("HSET", bed.settings.keys.breaker("owls"), "failures", 20, "open_until", 1)
    bed.ask("EXPIRE", bed.settings.keys.breaker("owls"), 60)
    owls.forget()
    result = await fleet.call(ONCE, owner)

    assert result.success
    assert [path for path, _ in owls.visits if path != "/manifest"] == ["/health", "/execute"]


@contextmanager
def deaf_port() -> Generator[int]:
    """A port that is listened at, and where no more connections are accepted than are there."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # what the kernel accepts by itself
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("refused", "Tool execution error: Connection refused"),
        ("silent", "it does not accept connections"),
        ("unresolved", "host name not known"),
    ],
)
async def test_a_caller_reads_what_is_wrong_with_a_module(
    bed: Bed, owls: ModuleServer, owner: Caller, trouble: str, said: str
) -> None:
    """At the first call and at those after it, within twice its limit and the wait for its module; and no word of failing often."""
    wait = 5.0
    await bed.serve(owls)
    fleet = await agent_that_knows_it(bed)
    with deaf_port() as deaf:
        places = {"refused": f"127.0.0.1:{closed_port()}", "silent": f"127.0.0.1:{deaf}", "unresolved": "owls.invalid"}
        await bed.worker(module_services={"owls": f"http://{places[trouble]}"})
        for _ in range(3):
            before = clock.monotonic()
            result = await fleet.call(READ, owner, timeout=300)
            assert clock.monotonic() - before < 2 * bed.settings.default_timeout + wait
            assert said in str(result.error)
            assert (result.error_code, result.effect_state, result.retryable) == ("module_unreachable", "none", True)
            if trouble == "refused":
                assert result.error == said


@pytest.mark.parametrize("comes_back", [True, False])
async def test_the_retry_of_a_call_waits_for_its_module(
    bed: Bed, owls: ModuleServer, owner: Caller, said: Callable[[], str], comes_back: bool
) -> None:
    """A module is killed while it has a call. If it comes back after the retry has found nobody there, the call succeeds.

    Else nobody knows of it; a read leaves no dead letter, for there is nothing to find out about it.
    """
    site = await bed.serve(owls)
    await bed.worker()
    fleet = await agent_that_knows_it(bed)
    handle = await fleet.submit(HANG, owner, timeout=60)
    await until(lambda: owls.running, "the module has it")
    site.kill()
    if comes_back:
        await until(lambda: "sent=False" in said(), "the retry has found nobody")
        await bed.serve(owls, port=port_of(owls))
    result = await handle.result()

    assert await fleet.dead_letters.list() == []
    assert (result.success, result.error_code, result.retryable) == (
        (True, None, False) if comes_back else (False, "outcome_unknown", True)
    )
    assert ("Connection refused" in str(result.error)) != comes_back


async def test_an_answer_stays_the_end_of_a_call_whose_repeat_finds_nobody(
    bed: Bed, owls: ModuleServer, owner: Caller, said: Callable[[], str]
) -> None:
    """Of a tool without an effect that is repeated by habit: the module has said what became of it, and a letter would say no more."""
    retries = {"name": "tool_retry", "undeclared": True, "initial_delay_seconds": 20, "jitter": False}
    bed.given["agents"] = {"production": {"middleware": [retries]}}
    site = await bed.serve(owls)
    await bed.worker()
    fleet = await agent_that_knows_it(bed)
    production = owner.model_copy(update={"agent": "production"})
    handle = await fleet.submit(ToolCall(tool_name="owls.fails"), production, timeout=60)
    await until(lambda: "tool_call_retried" in said(), "it is to be repeated")
    site.kill()
    result = await handle.result()

    assert (result.error_code, result.effect_state) == ("module_error", "unknown")
    assert "status 500" in str(result.error)
    assert await fleet.dead_letters.list() == []
    assert len(owls.requests) == 1


async def test_a_module_that_is_back_is_well_again_without_calls(bed: Bed, owls: ModuleServer, owner: Caller) -> None:
    """Its breaker is recovering while calls are let in gradually, and closed by its `/health` when none come."""
    site = await bed.serve(owls)
    await bed.worker()
    fleet = await agent_that_knows_it(bed)
    site.kill()
    handle = await fleet.submit(READ, owner, timeout=60)
    breaker = bed.settings.keys.breaker("owls")
    await until(lambda: bed.ask("HEXISTS", breaker, "open_until"), "it is left alone", step=1)
    await bed.serve(owls, port=port_of(owls))
    assert (await handle.result()).success
    assert bed.ask("HEXISTS", breaker, "half_at")
    shown = (await read_status(bed.settings)).troubles
    await until(lambda: not bed.ask("EXISTS", breaker), "it is well again", step=1)

    assert [(one.module, one.trouble) for one in shown] == [("owls", "recovering")]


async def test_an_https_module_that_speaks_no_tls_is_unreachable() -> None:
    """Its socket is closed when half of the time is over: connecting may take no longer."""

    async def say_nothing(_: bytes, writer: asyncio.StreamWriter) -> None:
        del writer
        await asyncio.Event().wait()

    began_at = clock.monotonic()
    async with raw_module(say_nothing) as url:
        services = {"git": url.replace("http:", "https:")}
        found = await discover(services, timeout_seconds=10, max_bytes=100_000)
    assert found["git"] == ManifestFailure("no connection within 5 s")
    assert 5 <= clock.monotonic() - began_at < 6
    gc.collect()  # a socket left open would warn, which is an error
