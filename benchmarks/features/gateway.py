"""What the gateway costs beside a Python agent: `python -m benchmarks.features.gateway`. Fails if a target is missed.

Calls over REST and W1 (a module that answers at once, 200 in flight) take turns on one fleet of one worker; so do calls one at a
time. Then 1,000 streams of events are opened. Redis, worker, gateway, module and whoever calls share this machine.
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.features.rest_client import RestClient
from benchmarks.machine import wait_for_quiet
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.child_processes import spawn, stop
from toolfleet_cli.local.commands import worker_command
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_cli.local.tcp_ports import free_port
from toolfleet_registry.settings import Settings

_ROUNDS, _SECONDS, _WARM_SECONDS = 7, 4.0, 2.0
_IN_FLIGHT = 200
_STREAMS, _STREAMED_CALLS = 1_000, 20
_QUIET_SECONDS, _START_SECONDS = 30, 60.0
_LEAST_RATIO, _MOST_MS, _MOST_MB = 0.55, 2.0, 150
_OK = 200
_ANYBODY = Caller(user_id="operator", permission="owner", allowed_modules="*")
_ARGUMENTS = {"title": "note", "text": "x" * 160, "tags": ["a", "b"], "number": 3, "nested": {"a": 1}}
_TOOL, _LONG_TOOL = "instant.echo", "wait60000.echo"

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class _Gateway:
    url: httpx.URL
    key: str
    pid: int

    @property
    def megabytes(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 2**20


@dataclass(frozen=True)
class _Found:
    """What was measured: calls a second over REST and by a Python agent, by round; p50 in ms of calls one at a time; MB."""

    rates: tuple[list[float], list[float]]
    latencies: tuple[list[float], list[float]]
    cpu_ms: tuple[list[float], list[float]]
    megabytes: tuple[float, float]

    @property
    def ratio(self) -> float:
        return statistics.median(one / other for one, other in zip(*self.rates, strict=True))

    @property
    def added_ms(self) -> float:
        return statistics.median(one - other for one, other in zip(*self.latencies, strict=True))

    @property
    def is_missed(self) -> bool:
        return self.ratio < _LEAST_RATIO or self.added_ms > _MOST_MS or self.megabytes[1] > _MOST_MB

    def lines(self) -> list[str]:
        rest, python = map(statistics.median, self.rates)
        slow, fast = map(statistics.median, self.latencies)
        much, little = map(statistics.median, self.cpu_ms)
        empty, full = self.megabytes
        return [
            "| | over REST | a Python agent | | goal |",
            "|---|---:|---:|---:|---:|",
            f"| calls/s, {_IN_FLIGHT} in flight | {rest:,.0f} | {python:,.0f} | {self.ratio:.2f} | >= {_LEAST_RATIO:g} |",
            f"| CPU ms a call, all processes | {much:.2f} | {little:.2f} | {little / much:.2f} | |",
            f"| p50 ms, one at a time | {slow:.2f} | {fast:.2f} | {self.added_ms:+.2f} | <= +{_MOST_MS:g} |",
            f"| MB of the gateway with {_STREAMS:,} streams; without | {full:.0f} | {empty:.0f} | | <= {_MOST_MB} |",
        ]


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=_ROUNDS)
    options.add_argument("--seconds", type=float, default=_SECONDS)
    options.add_argument("--streams", type=int, default=_STREAMS)
    chosen = options.parse_args()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder, _fleet(Path(folder)) as (settings, gateway):
        found = asyncio.run(_measure(settings, gateway, chosen))
    how = f"one worker, one gateway; medians of {chosen.rounds} rounds of {chosen.seconds:g} s, in turns"
    text = "\n".join([f"The gateway beside a Python agent (`make bench-gateway`): {how}:\n", *found.lines()])
    print(text)
    if (chosen.rounds, chosen.seconds, chosen.streams) == (_ROUNDS, _SECONDS, _STREAMS):
        (Path(__file__).parents[1] / "results" / "gateway.md").write_text(text + "\n")
    sys.exit(found.is_missed)


async def _measure(settings: Settings, gateway: _Gateway, chosen: argparse.Namespace) -> _Found:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(ToolFleet(settings=settings))
        await fleet.modules.refresh()
        client = RestClient(gateway.url.host, gateway.url.port or 0, gateway.key)
        stack.callback(client.close)
        ways = _over_rest(client), _by_agent(fleet)
        for way in ways:
            await _times(way, _IN_FLIGHT, _WARM_SECONDS)
        rates, latencies = (list[float](), list[float]()), (list[float](), list[float]())
        cpu_ms = list[float](), list[float]()
        for _ in range(chosen.rounds):
            for way, found, spent in zip(ways, rates, cpu_ms, strict=True):
                before = _cpu_seconds()
                calls = len(await _times(way, _IN_FLIGHT, chosen.seconds))
                found.append(calls / chosen.seconds)
                spent.append((_cpu_seconds() - before) / calls * 1000)
            for way, found in zip(ways, latencies, strict=True):
                found.append(statistics.median(await _times(way, 1, chosen.seconds / 2)) * 1000)
        return _Found(rates, latencies, cpu_ms, await _with_streams(client, gateway, chosen.streams))


def _cpu_seconds() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def _times(work: Work, in_flight: int, seconds: float) -> list[float]:
    """How long each took that ended within the time, so many at once."""
    began_at, times = time.perf_counter(), list[float]()

    async def go_on() -> None:
        while (asked_at := time.perf_counter()) - began_at < seconds:
            await work()
            times.append(time.perf_counter() - asked_at)

    await asyncio.gather(*(go_on() for _ in range(in_flight)))
    return times


def _by_agent(fleet: ToolFleet) -> Work:
    async def call() -> None:
        result = await fleet.call(ToolCall(tool_name=_TOOL, arguments=_ARGUMENTS), _ANYBODY)
        if not result.success:
            sys.exit(f"A call has failed: {result}")

    return call


def _over_rest(client: RestClient) -> Work:
    async def call() -> None:
        status, answer = await client.post("/calls", {"tool_name": _TOOL, "arguments": _ARGUMENTS})
        if status != _OK or not answer["success"]:
            sys.exit(f"A call has failed: {status} {answer}")

    return call


async def _with_streams(client: RestClient, gateway: _Gateway, count: int) -> tuple[float, float]:
    """The gateway's megabytes before the streams are open, and with them."""
    before, call = gateway.megabytes, {"tool_name": _LONG_TOOL, "arguments": _ARGUMENTS}
    begun = [await client.post("/calls", call, "Prefer: respond-async\r\n") for _ in range(_STREAMED_CALLS)]
    ids = [answer["call_id"] for _, answer in begun]
    opened = [await _open_stream(gateway, ids[number % len(ids)]) for number in range(count)]
    with_streams = gateway.megabytes
    for writer in opened:
        writer.close()
    return before, with_streams


async def _open_stream(gateway: _Gateway, call_id: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(gateway.url.host, gateway.url.port)
    host = f"Host: {gateway.url.host}\r\nAuthorization: Bearer {gateway.key}\r\n\r\n"
    writer.write(f"GET /calls/{call_id}/events HTTP/1.1\r\n{host}".encode())
    head = await reader.readuntil(b"retry: ")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"A stream was not opened: {head!r}")
    return writer


@contextmanager
def _fleet(folder: Path) -> Generator[tuple[Settings, _Gateway]]:
    """Redis, a module, a worker and a gateway."""
    port = free_port()
    (folder / "redis").mkdir()
    module = [sys.executable, "-m", "benchmarks.module.app", str(port)]
    gateway = [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", "0"]
    with redis_server(folder / "redis") as url, _running(folder, "module", module, {}):
        base = f"http://127.0.0.1:{port}"
        services: dict[str, Any] = {name: f"{base}/{name}" for name in ("instant", "wait60000")}
        limits: dict[str, float] = {"wait60000": 300}
        settings = Settings(redis_url=url, module_services=services, module_timeouts=limits, log_level="WARNING")
        env = {**environment_of(settings), "PYTHONUNBUFFERED": "1"}
        with (
            _running(folder, "worker", worker_command("all"), env),
            _running(folder, "gateway", gateway, env) as process,
        ):
            yield settings, _ready(folder, process)


@contextmanager
def _running(folder: Path, name: str, command: list[str], env: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = spawn(command, env=env, cwd=Path(__file__).parents[2], output=log)
    try:
        yield process
    finally:
        stop(process, patience_seconds=5)


def _ready(folder: Path, process: subprocess.Popen[bytes]) -> _Gateway:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        said = (folder / "gateway.log").read_text()
        key, url = re.search(r"key: (\S+)", said), re.search(r"ready url=(\S+)", said)
        if key and url and "worker ready" in (folder / "worker.log").read_text():
            wait_for_quiet(_QUIET_SECONDS)
            return _Gateway(httpx.URL(url[1]), key[1], process.pid)
        if time.monotonic() > give_up_at:
            sys.exit(f"The fleet does not start: {said}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
