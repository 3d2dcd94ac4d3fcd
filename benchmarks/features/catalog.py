"""What 10,000 tools cost an agent: `python -m benchmarks.features.catalog`. Fails if it is more than it may be."""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import structlog
from redis.asyncio import Redis

from benchmarks.machine import wait_for_quiet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.catalog.registration import Registrar
from toolfleet_registry.contracts import Caller, ModuleManifest, ToolCall
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.redis import RedisToolRegistry

_MODULES, _TOOLS = 10, 1000
_NAMES = tuple(f"module{number}" for number in range(_MODULES))
_AGENTS = 3
_QUIET_SECONDS = 60  # at most, for other programs to be done
_REPEATS = 1000
_TICK = 0.001  # seconds between two looks at the clock, for how long the event loop was held
_FIRST_LOAD_MS, _LISTING_MS, _SEARCH_MS = 1000.0, 2.0, 20.0  # what must be reached
_OWNER = Caller(permission="owner", allowed_modules="*")


@dataclass(frozen=True)
class Figure:
    """One line of the report. `most`: what it must not exceed; `loop_ms`: for how long it held the event loop at once."""

    what: str
    ms: float
    most: float | None = None
    loop_ms: float | None = None

    def line(self) -> str:
        """As a row of a table."""
        goal = "" if self.most is None else f"< {self.most:g}"
        held = "" if self.loop_ms is None else f"{self.loop_ms:.0f}"
        return f"| {self.what} | {self.ms:,.3f} | {goal} | {held} |"


def main() -> None:
    """Measure, print, and fail if a figure is too large."""
    # Each in a process of its own, as agents and beat are: what one has in memory must not delay the other.
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server(Path(folder)) as url,
        ProcessPoolExecutor(mp_context=get_context("spawn"), max_tasks_per_child=1) as processes,
    ):
        wait_for_quiet(_QUIET_SECONDS)
        refresh = processes.submit(_run, _refresh, url).result()
        agents = [processes.submit(_run, _agent, url).result() for _ in range(_AGENTS)]
    figures = [
        *refresh,
        *(sorted(each, key=lambda figure: figure.ms)[_AGENTS // 2] for each in zip(*agents, strict=True)),
    ]
    text = "\n".join(
        [
            f"{_MODULES * _TOOLS:,} tools of {_MODULES} modules, with five parameters each, in ms:\n",
            "| | ms | goal | loop held |",
            "|---|---:|---:|---:|",
            *(figure.line() for figure in figures),
        ]
    )
    print(text)
    (Path(__file__).parents[1] / "results" / "catalog.md").write_text(text + "\n")
    sys.exit(any(figure.most is not None and figure.ms > figure.most for figure in figures))


def _run(measure: Callable[[str], Coroutine[Any, Any, list[Figure]]], url: str) -> list[Figure]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return asyncio.run(measure(url))


async def _refresh(url: str) -> list[Figure]:
    manifests = {name: _manifest(name) for name in _NAMES}
    async with Redis.from_url(url) as redis:
        registrar = Registrar(_cache(redis), lambda: RedisToolRegistry(url, Keys()))
        return [
            await _timed("taken into an empty registry, once", lambda: registrar.take_in(manifests)),
            await _timed("taken in again, unchanged, by each refresh", lambda: registrar.take_in(manifests)),
        ]


async def _agent(url: str) -> list[Figure]:
    settings = Settings(redis_url=url, module_services=dict.fromkeys(_NAMES, "http://127.0.0.1:1"))
    async with Redis.from_url(url) as redis:
        catalog = Catalog(settings, _cache(redis))
        return [
            await _timed("an agent's first load", catalog.load, most=_FIRST_LOAD_MS),
            await _timed("a load when nothing has changed", catalog.load),
            *_of_memory(catalog),
            *_of_registry(url),
            await _timed("a first search", lambda: catalog.search("send invoice", _OWNER)),
            await _search(catalog),
        ]


def _of_memory(catalog: Catalog) -> list[Figure]:
    call = ToolCall(tool_name="module7.tool0500", arguments={"argument0": "owls"})
    everybody = Caller(permission="user", allowed_modules="*")
    one_module = Caller(permission="user", allowed_modules=frozenset({"module3"}))
    return [
        Figure("`tools(caller)`, the first of its kind", _each(lambda: catalog.tools(everybody), repeats=1)),
        Figure("the same with one module", _each(lambda: catalog.tools(one_module), repeats=1)),
        Figure("`tools(caller)`, warm", _each(lambda: catalog.tools(everybody)), most=_LISTING_MS),
        Figure("`judge` of a call", _each(lambda: catalog.judge(call, _OWNER))),
    ]


def _of_registry(url: str) -> list[Figure]:
    """A registry's own search, in the same Redis."""
    registry = RedisToolRegistry(url, Keys())
    first = Figure("`search` of a registry, the first", _each(lambda: registry.search("send invoice"), repeats=1))
    warm = _each(lambda: registry.search("send invoice"), repeats=50)
    registry.close()
    return [first, Figure("`search` of a registry, warm", warm, most=_SEARCH_MS)]


async def _search(catalog: Catalog) -> Figure:
    times = list[float]()
    for number in range(50):
        began_at = time.perf_counter()
        await catalog.search(f"send invoice {number}", _OWNER)
        times.append((time.perf_counter() - began_at) * 1000)
    return Figure("a search", statistics.median(times))


def _each(work: Callable[[], Any], *, repeats: int = _REPEATS) -> float:
    """The median of `repeats`, in ms."""
    times = list[float]()
    for _ in range(repeats):
        began_at = time.perf_counter()
        work()
        times.append((time.perf_counter() - began_at) * 1000)
    return statistics.median(times)


async def _timed(what: str, work: Callable[[], Awaitable[Any]], *, most: float | None = None) -> Figure:
    longest, is_over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not is_over:
            before = time.perf_counter()
            await asyncio.sleep(_TICK)
            longest = max(longest, time.perf_counter() - before - _TICK)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    began_at = time.perf_counter()
    await work()
    ms = (time.perf_counter() - began_at) * 1000
    is_over = True
    await watching
    return Figure(what, ms, most, longest * 1000)


def _cache(redis: Redis) -> ManifestCache:
    return ManifestCache(redis, ttl_seconds=3600)


def _manifest(module: str) -> ModuleManifest:
    types = ("string", "integer", "number", "boolean", "array")
    tools = [
        {
            "name": f"{module}.tool{number:04}",
            "description": f"Does number {number} of many useful things to an owl, an invoice or a letter. " * 2,
            "parameters": [
                {"name": f"argument{n}", "type": kind, "description": f"Argument {n} of it.", "required": n == 0}
                for n, kind in enumerate(types)
            ],
            "required_permission": ("guest", "user", "admin", "owner")[number % 4],
            "tags": ["owls", f"tag{number % 7}"],
        }
        for number in range(_TOOLS)
    ]
    return ModuleManifest.model_validate(json.loads(json.dumps({"module_name": module, "tools": tools})))


if __name__ == "__main__":
    main()
