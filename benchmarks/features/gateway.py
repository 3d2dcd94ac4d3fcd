"""What the gateway costs beside a Python agent: `python -m benchmarks.features.gateway`. Fails if a target is missed.

W1 (a module that answers at once, 200 in flight) and W3 (the same, one at a time) take turns: by a Python agent, over REST and over MCP, on one fleet of
one worker; and with servers of FastMCP, of the MCP SDK and ContextForge, which call the same module directly. Before that 1,000 streams of events
are opened. Redis, worker, gateway, module, peers and whoever calls share this machine. `--short` is a look: it writes nothing, and fails at nothing.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import install
from benchmarks.features.contextforge import ENVIRONMENT, SET
from benchmarks.features.gateway_figures import AGENT, IN_FLIGHT, MCP, REST, STREAMS, GatewayFigures
from benchmarks.features.gateway_fleet import LONG_TOOL, TOOL, Fleet, Gateway, gateway_fleet
from benchmarks.features.rest_client import RestClient
from benchmarks.machine import cpu_seconds
from toolfleet import Caller, ToolCall, ToolFleet

_ROUNDS, _SECONDS, _WARM_SECONDS = 7, 4.0, 2.0
_SHORT_ROUNDS, _SHORT_SECONDS, _SHORT_STREAMS = 1, 1.0, 50
_STREAMED_CALLS = 20
_CALL_SECONDS = 120  # a call that takes longer has failed
_OK = 200
_ANYBODY = Caller(user_id="operator", permission="owner", allowed_modules="*")
_ARGUMENTS = {"title": "note", "text": "x" * 160, "tags": ["a", "b"], "number": 3, "nested": {"a": 1}}

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class _Way:
    """How a call is made, and the processes that have work with it."""

    call: Work
    pids: Sequence[int]


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    chosen = _options()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    install("fastmcp", ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder, gateway_fleet(Path(folder)) as fleet:
        found = asyncio.run(_measure(fleet, chosen))
    how = f"one worker, one gateway; medians of {chosen.rounds} rounds of {chosen.seconds:g} s, in turns"
    text = "\n".join(
        [f"The gateway beside a Python agent (`make bench BENCH=gateway`): {how}:\n", *found.lines(), "", SET]
    )
    print(text)
    if (chosen.rounds, chosen.seconds, chosen.streams) == (_ROUNDS, _SECONDS, STREAMS):
        (Path(__file__).parents[1] / "results" / "gateway.md").write_text(text + "\n")
    sys.exit(found.is_missed and not chosen.short)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--short", action="store_true")
    options.add_argument("--rounds", type=int)
    options.add_argument("--seconds", type=float)
    options.add_argument("--streams", type=int)
    chosen = options.parse_args()
    whole = (_ROUNDS, _SECONDS, STREAMS)
    defaults = (_SHORT_ROUNDS, _SHORT_SECONDS, _SHORT_STREAMS) if chosen.short else whole
    for name, value in zip(("rounds", "seconds", "streams"), defaults, strict=True):
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    return chosen


async def _measure(fleet: Fleet, chosen: argparse.Namespace) -> GatewayFigures:
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(ToolFleet(settings=fleet.settings))
        await agent.modules.refresh()

        def client_of(port: int, key: str) -> RestClient:
            stack.callback((client := RestClient("127.0.0.1", port, key)).close)
            return client

        gateway, own = fleet.gateway, os.getpid()
        rest = client_of(gateway.url.port or 0, gateway.key)
        common = (own, fleet.module_pid)
        ways = {AGENT: _Way(_by_agent(agent), (*common, *fleet.pids))}
        ways[REST] = _Way(_over_rest(rest), (*common, *fleet.pids))
        for peer in (gateway.as_peer, *fleet.peers):
            call = peer.calling(client_of(peer.port, peer.key), _ARGUMENTS)
            ways[peer.name] = _Way(call, (*common, *(fleet.pids if peer.name == MCP else [peer.pid])))
        with_streams = await _with_streams(rest, gateway, chosen.streams)  # before MCP's code is loaded
        for way in ways.values():
            await _times(way.call, IN_FLIGHT, min(chosen.seconds, _WARM_SECONDS))
        figures = GatewayFigures.empty(ways, with_streams, chosen.streams)
        for _ in range(chosen.rounds):
            for name, way in ways.items():
                before = cpu_seconds(way.pids)
                began_at, calls = time.perf_counter(), len(await _times(way.call, IN_FLIGHT, chosen.seconds))
                figures.rates[name].append(calls / (time.perf_counter() - began_at))
                figures.cpu_ms[name].append((cpu_seconds(way.pids) - before) / calls * 1000)
            for name, way in ways.items():
                alone = await _times(way.call, 1, chosen.seconds / 2)
                figures.latencies[name].append(statistics.median(alone) * 1000)
        return figures


async def _times(work: Work, in_flight: int, seconds: float) -> list[float]:
    """How long each took that was begun within the time, so many at once. Returns when the last has ended."""
    began_at, times = time.perf_counter(), list[float]()

    async def go_on() -> None:
        while (asked_at := time.perf_counter()) - began_at < seconds:
            await work()
            times.append(time.perf_counter() - asked_at)

    async with asyncio.timeout(seconds + _CALL_SECONDS):
        await asyncio.gather(*(go_on() for _ in range(in_flight)))
    return times


def _by_agent(fleet: ToolFleet) -> Work:
    async def call() -> None:
        result = await fleet.call(ToolCall(tool_name=TOOL, arguments=_ARGUMENTS), _ANYBODY)
        if not result.success:
            sys.exit(f"A call has failed: {result}")

    return call


def _over_rest(client: RestClient) -> Work:
    async def call() -> None:
        status, answer = await client.post("/calls", {"tool_name": TOOL, "arguments": _ARGUMENTS})
        if status != _OK or not answer["success"]:
            sys.exit(f"A call has failed: {status} {answer}")

    return call


async def _with_streams(client: RestClient, gateway: Gateway, count: int) -> tuple[float, float]:
    """The gateway's megabytes before the streams are open, and with them."""
    before, call = gateway.megabytes, {"tool_name": LONG_TOOL, "arguments": _ARGUMENTS}
    begun = [await client.post("/calls", call, "Prefer: respond-async\r\n") for _ in range(_STREAMED_CALLS)]
    ids = [answer["call_id"] for _, answer in begun]
    opened = [await _open_stream(gateway, ids[number % len(ids)]) for number in range(count)]
    with_streams = gateway.megabytes
    for writer in opened:
        writer.close()
    return before, with_streams


async def _open_stream(gateway: Gateway, call_id: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(gateway.url.host, gateway.url.port)
    host = f"Host: {gateway.url.host}\r\nAuthorization: Bearer {gateway.key}\r\n\r\n"
    writer.write(f"GET /calls/{call_id}/events HTTP/1.1\r\n{host}".encode())
    head = await reader.readuntil(b"retry: ")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"A stream was not opened: {head!r}")
    return writer


if __name__ == "__main__":
    main()
