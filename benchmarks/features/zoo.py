"""What hostile MCP servers cost other modules: `python -m benchmarks.features.zoo`.

One after the other is served as a module and called five times a second, while another module's tool is called fifty times a second. Before
each, that tool is called so alone; what one half of those pieces is to the other says how far chance goes. Redis, a worker, the hosts and whoever calls share this machine.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.features.host_programs import MODULE
from benchmarks.machine import wait_for_quiet
from support.hosts.zoo.animal import CALL, HANDSHAKE, LIST, START
from support.hosts.zoo.cages import ANIMAL
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_cli.local.redis_server import free_port, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.settings import Settings

_SPECIES = (*START, *HANDSHAKE, *LIST, *CALL)
_SECONDS, _SETTLE_SECONDS = 2.5, 2.0
_CALLS_A_SECOND, _HOSTILE_A_SECOND = 50, 5
_QUIET_SECONDS, _START_SECONDS = 30, 30.0
_MOST = 1.1
_ANYBODY = Caller(user_id="user-42", permission="owner", allowed_modules="*")
_NOTE = ToolCall(tool_name="plain.echo", arguments={"title": "note", "text": "x" * 160, "number": 3})
_BAD = ToolCall(tool_name="zoo.bad", arguments={})


def main() -> None:
    """Measure, print, and fail if others wait longer."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=_SPECIES, nargs="+", default=_SPECIES)
    options.add_argument("--seconds", type=float, default=_SECONDS)
    chosen = options.parse_args()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder, _fleet(Path(folder)) as settings:
        alone, beside = asyncio.run(_measure(Path(folder), settings, chosen))
    ratio = _p95(itertools.chain(*beside.values())) / _p95(itertools.chain(*alone))
    chance = _p95(itertools.chain(*alone[::2])) / _p95(itertools.chain(*alone[1::2])) if len(alone) > 1 else 1
    worst = sorted(beside, key=lambda species: _p95(beside[species]), reverse=True)[:5]
    rows = [
        ("alone", _p95(itertools.chain(*alone))),
        *((f"beside one that {species}", _p95(beside[species])) for species in worst),
    ]
    text = "\n".join(
        [
            f"A module's calls, {_CALLS_A_SECOND} a second, beside {len(beside)} hostile MCP servers, one after the other,",
            f"each called {_HOSTILE_A_SECOND} times a second for {chosen.seconds:g} s (`make bench BENCH=zoo`).\n",
            "| | p95, ms |\n|---|---:|",
            *(f"| {what} | {1000 * found:.1f} |" for what, found in rows),
            f"| beside all | {1000 * _p95(itertools.chain(*beside.values())):.1f} |",
            f"\nRatio of all to alone: {ratio:.2f} (goal: at most {_MOST}); of alone, every other piece, to alone: {chance:.2f}.",
        ]
    )
    print(text)
    if (chosen.only, chosen.seconds) == (_SPECIES, _SECONDS):
        (Path(__file__).parents[1] / "results" / "zoo.md").write_text(text + "\n")
    sys.exit(ratio > _MOST)


async def _measure(
    folder: Path, settings: Settings, chosen: argparse.Namespace
) -> tuple[list[list[float]], dict[str, list[float]]]:
    """The seconds of each call alone, piece by piece, and beside each of them."""
    alone, beside = list[list[float]](), dict[str, list[float]]()
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        await _called(fleet, 1.0)
        for species in chosen.only:
            alone.append(await _called(fleet, chosen.seconds))
            with _hosted(folder, settings, species):
                await asyncio.sleep(_SETTLE_SECONDS)
                await fleet.modules.refresh()
                hostile = asyncio.ensure_future(_call_hostile(fleet))
                beside[species] = await _called(fleet, chosen.seconds)
                hostile.cancel()
                await asyncio.gather(hostile, return_exceptions=True)
    return alone, beside


async def _called(fleet: ToolFleet, seconds: float) -> list[float]:
    """How long each call takes from when it is due."""
    began_at = time.perf_counter()

    async def one(due_at: float) -> float:
        await asyncio.sleep(max(due_at - time.perf_counter(), 0))
        result = await fleet.call(_NOTE, _ANYBODY)
        if not result.success:
            sys.exit(f"A call has failed: {result}")
        return time.perf_counter() - due_at

    count = round(seconds * _CALLS_A_SECOND)
    return await asyncio.gather(*(one(began_at + number / _CALLS_A_SECOND) for number in range(count)))


async def _call_hostile(fleet: ToolFleet) -> None:
    """Until it is cancelled; what becomes of them is theirs."""
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(fleet.call(_BAD, _ANYBODY, timeout=2))
            await asyncio.sleep(1 / _HOSTILE_A_SECOND)


def _p95(seconds: "itertools.chain[float] | list[float]") -> float:
    return statistics.quantiles(seconds, n=20)[-1]


@contextmanager
def _fleet(folder: Path) -> Generator[Settings]:
    """Redis, a worker and the module that is called beside; the hostile module has its address, and comes and goes."""
    plain, zoo = free_port(), free_port()
    (folder / "plain.py").write_text(MODULE)
    (folder / "redis").mkdir()
    serve = [sys.executable, "-m", "toolfleet_modules.sdk.serve", "plain:app", "--port", str(plain)]
    services = {"plain": f"http://127.0.0.1:{plain}", "zoo": f"http://127.0.0.1:{zoo}"}
    with redis_server(folder / "redis") as url, _running(folder, "plain", serve, {}):
        settings = Settings(redis_url=url, module_services=services)
        with _running(folder, "worker", worker_command("all"), environment_of(settings)):
            _wait_for(services["plain"])
            wait_for_quiet(_QUIET_SECONDS)
            yield settings


@contextmanager
def _hosted(folder: Path, settings: Settings, species: str) -> Generator[None]:
    home = folder / "zoo"
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", str(ANIMAL), species]
    words = ", ".join(f'"{word}"' for word in command)
    (home / "toolfleet.toml").write_text(
        f"[hosts.zoo]\ncommand = [{words}]\nhandshake_seconds = 3\nstuck_seconds = 1\n"
    )
    url = settings.module_services["zoo"]
    run = [sys.executable, "-m", "toolfleet_cli", "host", "run", "zoo", "--port", url.rpartition(":")[2]]
    with _running(home, "zoo", run, {}):
        _wait_for(url)
        yield


@contextmanager
def _running(folder: Path, name: str, command: list[str], env: dict[str, str]) -> Generator["subprocess.Popen[bytes]"]:
    with (folder / f"{name}.log").open("wb") as log:
        process = spawn(command, env=env, cwd=folder, output=log)
    try:
        yield process
    finally:
        stop(process, patience_seconds=10)


def _wait_for(url: str) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up_at:
        try:
            httpx.get(f"{url}/manifest", trust_env=False, timeout=5)
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"Nobody listens at {url}.")


if __name__ == "__main__":
    main()
