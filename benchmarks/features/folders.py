"""What tool folders cost, and how soon agents see a change: `python -m benchmarks.features.folders`. Fails if it is more than it may be."""

import ast
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import wait_for_quiet
from toolfleet import Caller, ToolFleet
from toolfleet_modules.hosts.folder.folder_host import FolderHost
from toolfleet_modules.hosts.folder.generation import FolderOptions
from toolfleet_modules.hosts.folder.scan import ScanRules, scan
from toolfleet_registry.config.run_file import RunFile
from toolfleet_registry.settings import Settings

_QUIET_SECONDS = 60  # at most, for other programs to be done
_FILES, _RELOADS, _SAVES, _SCANS = 1000, 1000, 20, 200
_SCANNED_LINES = 203  # 29 tools
_UP_SECONDS, _SEEN_SECONDS = 90.0, 20.0
_LOOK_SECONDS = 0.005
_OWNER = Caller(permission="owner", allowed_modules="*")

_TOOL = '''from toolfleet.sdk import tool


@tool(effect="read")
def tool_{number}(day: int = 1, name: str = "owl") -> str:
    """{words}"""
    return f"{{name}} {{day}}"
'''


@dataclass(frozen=True)
class Figure:
    """One line of the report. `most`: what it must not exceed."""

    what: str
    value: float
    unit: str
    most: float | None = None

    def line(self) -> str:
        """As a row of a table."""
        goal = "" if self.most is None else f"< {self.most:g}"
        return f"| {self.what} | {self.value:,.2f} {self.unit} | {goal} |"


def main() -> None:
    """Measure, print, and fail if a figure is too large."""
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    wait_for_quiet(_QUIET_SECONDS)
    figures = [_scan(), *asyncio.run(_many_files()), asyncio.run(_reloads()), asyncio.run(_saves())]
    text = "\n".join(
        [
            "Tool folders (`make bench BENCH=folders`):\n",
            "| | | goal |",
            "|---|---:|---:|",
            *(figure.line() for figure in figures),
        ]
    )
    print(text)
    (Path(__file__).parents[1] / "results" / "folders.md").write_text(text + "\n")
    sys.exit(any(figure.most is not None and figure.value > figure.most for figure in figures))


def _scan() -> Figure:
    one = _TOOL.format(number=1, words="Say.")
    tree, rules = ast.parse(one * (_SCANNED_LINES // len(one.splitlines()))), ScanRules()
    times = [_timed(lambda: scan(tree, rules)) for _ in range(_SCANS)]
    return Figure(f"scan of {_SCANNED_LINES} lines, median", statistics.median(times) * 1000, "ms", 1)


async def _many_files() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(_FILES):
            _write(folder, number, "Say.")
        return [*await _loads(folder, is_lazy=False), *await _loads(folder, is_lazy=True)]


async def _loads(folder: Path, *, is_lazy: bool) -> list[Figure]:
    how = ", functions with their first call" if is_lazy else ""
    began_at = time.perf_counter()
    async with _host(folder, is_lazy=is_lazy) as host:
        first = time.perf_counter() - began_at
        began_at = time.perf_counter()
        await host.reload()
        again = time.perf_counter() - began_at
    return [
        Figure(f"{_FILES:,} files loaded{how}", first, "s", 5),
        Figure(f"a rescan of them without changes{how}", again, "s", 0.2),
    ]


async def _reloads() -> Figure:
    with tempfile.TemporaryDirectory() as name:
        async with _host(Path(name)) as host:
            sizes = list[float]()
            for number in range(_RELOADS + 1):
                _write(Path(name), 0, f"Say {number}.")
                await host.reload()
                if number in {_RELOADS // 10, _RELOADS}:  # the first ones fill caches
                    sizes.append(psutil.Process().memory_info().rss / 2**20)
    return Figure(f"growth of the host by {_RELOADS:,} reloads", sizes[-1] - sizes[0], "MB", 10)


async def _saves() -> Figure:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "owls").mkdir()
        _write(home / "owls", 0, "Say -1.")
        with _up(home) as run_file:
            async with ToolFleet(settings=Settings(redis_url=run_file.settings["redis_url"])) as fleet:
                times = [await _seen_after(fleet, home / "owls", f"Say {number}.") for number in range(_SAVES)]
    return Figure("from a save to what an agent lists, median", statistics.median(times), "s", 1)


async def _seen_after(fleet: ToolFleet, folder: Path, words: str) -> float:
    _write(folder, 0, words)
    began_at = time.perf_counter()
    async with asyncio.timeout(_SEEN_SECONDS):
        while words not in {tool.description for tool in await fleet.tools(_OWNER)}:  # noqa: ASYNC110 - as an agent does
            await asyncio.sleep(_LOOK_SECONDS)
    return time.perf_counter() - began_at


@asynccontextmanager
async def _host(folder: Path, *, is_lazy: bool = False) -> AsyncGenerator[FolderHost]:
    """A host that nothing but its caller has reload."""
    host = FolderHost(FolderOptions("owls", folder, is_lazy=is_lazy, debounce_ms=60_000))
    async with host.app.router.lifespan_context(host.app):
        yield host


@contextmanager
def _up(home: Path) -> Generator[RunFile]:
    run_file = home / ".toolfleet" / "run.json"
    command = [sys.executable, "-m", "toolfleet_cli", "up", "--tools", "owls"]
    with (home / "up.log").open("w") as log, subprocess.Popen(command, cwd=home, stdout=log, stderr=log) as running:
        try:
            give_up_at = time.monotonic() + _UP_SECONDS
            while "The fleet is up" not in (home / "up.log").read_text():
                if time.monotonic() > give_up_at or running.poll() is not None:
                    sys.exit(f"`toolfleet up` is not up:\n{(home / 'up.log').read_text()}")
                time.sleep(0.1)
            yield RunFile.model_validate_json(run_file.read_bytes())
        finally:
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(30)


def _write(folder: Path, number: int, words: str) -> None:
    """Save a file at once, as editors do."""
    draft = folder / ".draft"
    draft.write_text(_TOOL.format(number=number, words=words))
    draft.rename(folder / f"file_{number:04}.py")


def _timed(work: Callable[[], object]) -> float:
    began_at = time.perf_counter()
    work()
    return time.perf_counter() - began_at


if __name__ == "__main__":
    main()
