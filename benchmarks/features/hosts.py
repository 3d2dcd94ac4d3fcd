"""What a host costs beside a direct call: `python -m benchmarks.features.hosts`. Fails if a rate is too small a part of the other.

Each pair does the same work, side by side: a round of one, a round of the other. Redis, a worker, the hosts and whoever calls
share this machine.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from mcp import ClientSession, StdioServerParameters, stdio_client

from benchmarks.features.host_programs import DOCUMENT, FOLDER, MODULE, SERVER, SERVICE
from benchmarks.machine import wait_for_quiet
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_cli.local.redis_server import free_port, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.settings import Settings

_KINDS = ("folder", "mcp", "openapi")
_ROUNDS, _SECONDS, _WARM_SECONDS = 7, 4.0, 1.0
_IN_FLIGHT = 100
_QUIET_SECONDS, _START_SECONDS = 30, 60.0
_LEAST = 0.8
_ANYBODY = Caller(user_id="user-42", permission="owner", allowed_modules="*")
_ARGUMENTS = {"title": "note", "text": "x" * 160, "number": 3}

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Pair:
    """Two ways to the same work. `least`: what part of the second one's rate the first must have."""

    hosted: str
    direct: str
    ways: tuple[Work, Work]
    least: float | None = None


@dataclass(frozen=True)
class Compared:
    """The rates of a pair, a second, in each round."""

    pair: Pair
    rates: tuple[list[float], list[float]]

    @property
    def ratio(self) -> float:
        """The median of what the rounds say."""
        return statistics.median(one / other for one, other in zip(*self.rates, strict=True))

    @property
    def is_missed(self) -> bool:
        """Whether it is too small."""
        return self.pair.least is not None and self.ratio < self.pair.least

    def line(self) -> str:
        """As a row of a table."""
        one, other = map(statistics.median, self.rates)
        goal = "" if self.pair.least is None else f"> {self.pair.least:g}"
        return f"| {self.pair.hosted} | {one:,.0f} | {self.pair.direct} | {other:,.0f} | {self.ratio:.2f} | {goal} |"


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=_KINDS, nargs="+", default=_KINDS)
    options.add_argument("--rounds", type=int, default=_ROUNDS)
    options.add_argument("--seconds", type=float, default=_SECONDS)
    chosen = options.parse_args()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder, _fleet(Path(folder), chosen.only) as settings:
        found = asyncio.run(_measure(Path(folder), settings, chosen))
    how = (
        f"{_IN_FLIGHT} calls in flight, one worker; medians of {chosen.rounds} rounds of {chosen.seconds:g} s, in turns"
    )
    text = "\n".join(
        [
            f"Hosts beside direct calls (`make bench BENCH=hosts`): {how}:\n",
            "| through the fleet | calls/s | beside it | calls/s | ratio | goal |",
            "|---|---:|---|---:|---:|---:|",
            *(each.line() for each in found),
        ]
    )
    print(text)
    if (chosen.only, chosen.rounds, chosen.seconds) == (_KINDS, _ROUNDS, _SECONDS):
        (Path(__file__).parents[1] / "results" / "hosts.md").write_text(text + "\n")
    sys.exit(any(each.is_missed for each in found))


async def _measure(folder: Path, settings: Settings, chosen: argparse.Namespace) -> list[Compared]:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(ToolFleet(settings=settings))
        await fleet.modules.refresh()
        pairs = list[Pair]()
        if "folder" in chosen.only:
            ways = _called(fleet, "owls.echo"), _called(fleet, "plain.echo")
            pairs.append(Pair("a tool of a folder", "the same in an HTTP module, through the fleet", ways, _LEAST))
        if "mcp" in chosen.only:
            hosted, name = _called(fleet, "crows.echo"), "a tool of an MCP server, stdio"
            newer, older = await _asked(folder, stack), await _asked(folder, stack, is_older=True)
            pairs.append(Pair(name, "the official client alone, of 2026-07-28 as the host", (hosted, newer), _LEAST))
            pairs.append(Pair(name, "the official client alone, of 2025-11-25", (hosted, older), _LEAST))
        if "openapi" in chosen.only:
            ways = _called(fleet, "birds.echo"), await _requested(folder, stack)
            pairs.append(Pair("an operation of an OpenAPI document", "httpx alone", ways))
        return [await _compared(pair, chosen) for pair in pairs]


async def _compared(pair: Pair, chosen: argparse.Namespace) -> Compared:
    for way in pair.ways:
        await _rate(way, _WARM_SECONDS)
    rates = list[float](), list[float]()
    for _ in range(chosen.rounds):
        for way, found in zip(pair.ways, rates, strict=True):
            found.append(await _rate(way, chosen.seconds))
    return Compared(pair, rates)


async def _rate(work: Work, seconds: float) -> float:
    """How often a second it ends, so many at once."""
    began_at = time.perf_counter()
    ended = 0

    async def go_on() -> None:
        nonlocal ended
        while time.perf_counter() - began_at < seconds:
            await work()
            ended += 1

    await asyncio.gather(*(go_on() for _ in range(_IN_FLIGHT)))
    return ended / (time.perf_counter() - began_at)


def _called(fleet: ToolFleet, tool: str) -> Work:
    async def call() -> None:
        result = await fleet.call(ToolCall(tool_name=tool, arguments=_ARGUMENTS), _ANYBODY)
        if not result.success:
            sys.exit(f"A call has failed: {result}")

    return call


async def _asked(folder: Path, stack: AsyncExitStack, *, is_older: bool = False) -> Work:
    """The official client, with a server of its own, by the newer version of the protocol or the older one, which has the server do less."""
    server = StdioServerParameters(command=sys.executable, args=[str(folder / "crows.py")])
    log = stack.enter_context((folder / f"crows_{is_older}.log").open("w"))
    session = await stack.enter_async_context(
        ClientSession(*await stack.enter_async_context(stdio_client(server, errlog=log)))
    )
    await (session.initialize() if is_older else session.discover())
    await session.list_tools()
    return lambda: session.call_tool("echo", _ARGUMENTS)


async def _requested(folder: Path, stack: AsyncExitStack) -> Work:
    limits = httpx.Limits(max_connections=_IN_FLIGHT, max_keepalive_connections=_IN_FLIGHT)
    client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, limits=limits, timeout=30))
    url = (folder / "service").read_text() + "/echo"

    async def request() -> None:
        (await client.put(url, json=_ARGUMENTS)).raise_for_status().json()

    return request


@contextmanager
def _fleet(folder: Path, kinds: Sequence[str]) -> Generator[Settings]:
    """Redis, a worker, and what is called: the modules of these kinds, and what they are held against."""
    service, plain = free_port(), free_port()
    _write(folder, service)
    hosts = {
        kind: (name, free_port())
        for kind, name in zip(_KINDS, ("owls", "crows", "birds"), strict=True)
        if kind in kinds
    }
    serve = [sys.executable, "-m", "uvicorn", "--log-level", "warning", "--host", "127.0.0.1", "--port"]
    commands = {
        "service": [*serve, str(service), "service:app"],
        "plain": [sys.executable, "-m", "toolfleet_modules.sdk.serve", "plain:app", "--port", str(plain)],
        **{
            name: [sys.executable, "-m", "toolfleet_cli", "host", "run", name, "--port", str(port)]
            for name, port in hosts.values()
        },
    }
    ports = {"plain": plain, **dict(hosts.values())}
    with redis_server(folder / "redis") as url, _running(folder, commands, {}):
        settings = Settings(
            redis_url=url, module_services={name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        )
        for name, port in ports.items():
            _wait_for_tools(f"http://127.0.0.1:{port}", folder / f"{name}.log")
        with _running(folder, {"worker": worker_command("all")}, environment_of(settings)):
            wait_for_quiet(_QUIET_SECONDS)
            yield settings


def _write(folder: Path, service: int) -> None:
    for name, text in {
        "owls/echo.py": FOLDER,
        "plain.py": MODULE,
        "crows.py": SERVER,
        "service.py": SERVICE,
        "birds.yaml": DOCUMENT,
        "service": f"http://127.0.0.1:{service}",
        "toolfleet.toml": f"""[hosts.owls]
folder = "owls"

[hosts.crows]
command = ["{sys.executable}", "crows.py"]

[hosts.birds]
document = "birds.yaml"
base = "http://127.0.0.1:{service}"
""",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "redis").mkdir()


@contextmanager
def _running(folder: Path, commands: dict[str, list[str]], env: dict[str, str]) -> Generator[None]:
    started = list[subprocess.Popen[bytes]]()
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                started.append(spawn(command, env=env, cwd=folder, output=log))
        yield
    finally:
        for process in started:
            stop(process, patience_seconds=5)


def _wait_for_tools(url: str, log: Path) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        try:
            if httpx.get(f"{url}/manifest", trust_env=False).json()["tools"]:
                return
        except (httpx.HTTPError, ValueError):
            pass
        if time.monotonic() > give_up_at:
            sys.exit(f"A module does not start: {log.read_text()}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
