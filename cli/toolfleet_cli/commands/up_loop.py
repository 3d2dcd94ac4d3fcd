"""Does what `toolfleet up` does while its fleet runs: tells what has changed, obeys `restart`, reloads, shows modules' errors."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from redis.asyncio import Redis

from toolfleet import ToolFleet
from toolfleet_cli.commands.logs import LogExcerpts, LogTail, RestartRequests
from toolfleet_cli.commands.settings_lines import SettingsLines
from toolfleet_cli.console.output import need, note
from toolfleet_cli.local.fleet import LocalFleet
from toolfleet_cli.local.modules import check_hosted, own_tools
from toolfleet_registry.config.run_file import ListedProcess
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.errors import FleetError, FleetUnavailable, SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings

_MOST_FILES = 5_000
_NOT_SOURCE = {"__pycache__", "node_modules", "venv"}  # in addition to folders that begin with a dot

_Scan: TypeAlias = dict[Path, tuple[int, int]]

_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 0.5  # who asks looks after processes meanwhile

_RELOAD_CHECK_SECONDS = 0.5
_REFRESH_SECONDS = 5.0  # for a module that has come back to say what it offers; the fleet is not tended meanwhile

_CHECK_SECONDS = 0.5


class SourceWatch:
    """The Python files of a folder and those below it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = self._last = self._scan()

    def has_changed(self) -> bool:
        """Return whether they have changed since this was true last, and not since the last call: an editor that writes several has finished."""
        before, self._last = self._last, self._scan()
        if self._last == self._known or self._last != before:
            return False
        self._known = self._last
        return True

    def _scan(self) -> _Scan:
        found: _Scan = {}
        for folder, below, names in os.walk(self._folder):
            below[:] = [name for name in below if name not in _NOT_SOURCE and not name.startswith(".")]
            for name in names:
                if name.endswith(".py") and len(found) < _MOST_FILES:
                    found |= _facts(Path(folder, name))
        return found


def _facts(path: Path) -> _Scan:
    try:
        status = path.stat()
    except OSError:  # it has just gone
        return {}
    return {path: (status.st_mtime_ns, status.st_size)}


class SlowLane:
    """The slow lane of the fleet that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._revision = ""
        self._check_at = 0.0

    def is_needed(self) -> bool:
        """Return whether the directory of modules has got a slow one since the last call. Asks once a second at most.

        A Redis that does not answer within half a second is asked again with the next call.
        """
        if time.monotonic() < self._check_at:
            return False
        self._check_at = time.monotonic() + _POLL_SECONDS
        try:
            return asyncio.run(self._check())
        except (FleetUnavailable, TimeoutError):
            return False

    async def _check(self) -> bool:
        client = async_client(str(self._settings.redis_url), master=self._settings.sentinel_master)
        async with asyncio.timeout(_ANSWER_SECONDS), client as redis:
            return await self._has_come(redis)

    async def _has_come(self, redis: Redis) -> bool:
        directory = ModuleDirectory(redis, self._settings)
        revision, _ = await directory.revision()
        if revision == self._revision:
            return False
        entries = (await directory.read()).entries
        self._revision = revision
        return any(entry.slow and not entry.is_removed for entry in entries.values())


class UpLoop:
    """The work for a fleet whose data is in `folder`. `tell` gets its processes, now and when they change."""

    def __init__(
        self,
        fleet: LocalFleet,
        folder: Path,
        lines: SettingsLines,
        *,
        reload: bool,
        tell: Callable[[Mapping[str, ListedProcess], Mapping[str, str]], None],
    ) -> None:
        self._fleet, self._lines = fleet, lines
        self._tell = tell
        self._requests = RestartRequests(folder)
        self._requests.take()  # those of an earlier fleet
        hosts = {process for each in fleet.hosted for process in each.processes}
        restarted = {name: source for name, source in fleet.sources.items() if reload and name not in hosts}
        self._sources = {name: SourceWatch(source) for name, source in restarted.items()}
        self._log_folder = folder / "logs"
        self._logs = dict[str, tuple[LogTail, LogExcerpts]]()
        self._own_tools = OwnTools(fleet, folder.parent)
        self._slow_lane = SlowLane(fleet.settings)
        self._known, self._faults = fleet.processes(), lines.not_applied
        self._checked_at = 0.0
        self._follow_logs()
        tell(self._known, self._faults)

    def check(self) -> None:
        """Do it once. Takes milliseconds, but for a module that has come back, which is asked what it offers."""
        for name in self._requests.take():
            if self._fleet.restart(name):
                note(f"{name} is restarted, as somebody asked for it")
        self._reload()
        self._own_tools.take_up()
        if self._lines.check():
            asyncio.run(_refresh(self._fleet.settings))
        self._follow_logs()
        self._serve_slow_lane()
        self._show_logs()
        self._note_changes()

    def _reload(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < _RELOAD_CHECK_SECONDS:
            return
        self._checked_at = now
        for name, source in self._sources.items():
            if source.has_changed():
                note(f"{name} has changed and is restarted")
                self._fleet.restart(name)

    def _serve_slow_lane(self) -> None:
        if "worker-slow" not in self._known and self._slow_lane.is_needed():
            note("A slow module was added: a worker for the slow lane is started")
            self._fleet.serve_slow_lane()

    def _show_logs(self) -> None:
        now = time.monotonic()
        for name, (tail, excerpts) in self._logs.items():
            for line in excerpts.feed(tail.read(), now):
                note(f"{name} | {line}", style="dim")

    def _follow_logs(self) -> None:
        for name in self._fleet.sources.keys() - self._logs.keys():
            self._logs[name] = LogTail(self._log_folder / f"{name}.log"), LogExcerpts()

    def _note_changes(self) -> None:
        before, self._known = self._known, self._fleet.processes()
        faults, self._faults = self._faults, self._lines.not_applied
        if (self._known, self._faults) == (before, faults):
            return
        try:
            self._tell(self._known, self._faults)
        except OSError as exc:  # a full disk is no reason to end a fleet
            note(f"Other commands see the processes as they were: {exc}")
        if back := [name for name in self._fleet.sources if self._is_back(name, before)]:
            asyncio.run(_refresh(self._fleet.settings))  # it may offer other tools than before
            note(f"From now on calls reach {', '.join(sorted({self._known[name].module or name for name in back}))}")

    def _is_back(self, name: str, before: Mapping[str, ListedProcess]) -> bool:
        return (
            name in self._known
            and self._known[name].state == "ready"
            and (name not in before or before[name].state != "ready")
        )


async def _refresh(settings: Settings) -> None:
    try:
        async with asyncio.timeout(_REFRESH_SECONDS), ToolFleet(settings=settings) as client:
            await client.modules.refresh()
    except (FleetError, OSError) as exc:  # beat looks at every module anyway
        note(f"The tools that agents see may be the old ones for some minutes: {exc or 'no answer'}.")


class OwnTools:
    """The own tools of the fleet that runs in the folder `start`."""

    def __init__(self, fleet: LocalFleet, start: Path) -> None:
        self._fleet = fleet
        self._start = start
        self._check_at = 0.0
        self._fault = ""

    def take_up(self) -> None:
        """Serve the folder if it has appeared since. An obstacle is reported once."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_SECONDS
        found = own_tools(self._start, self._fleet.hosted)
        if found is None:
            return
        try:
            need("host")
            check_hosted(found, {*self._fleet.settings.modules, *self._fleet.processes()})
        except SettingsError as exc:
            if str(exc) != self._fault:
                note(str(exc))
            self._fault = str(exc)
            return
        note(f"The tools in {found.source} are served from now on")
        self._fleet.host(found)
