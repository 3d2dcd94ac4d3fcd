"""Runs the loop of `toolfleet up`: applies changed settings, obeys `restart`, reloads, reports changes, and shows modules' errors."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

from redis.asyncio import Redis

from toolfleet import ToolFleet
from toolfleet_cli.commands.logs import LogExcerpts, LogTail, RestartRequests
from toolfleet_cli.console import need, note
from toolfleet_cli.local.fleet import LocalFleet
from toolfleet_cli.local.modules import check_hosted, declared_hosts, own_tools
from toolfleet_registry.config.run_file import ANY_MODULE, ListedProcess
from toolfleet_registry.config.setting_sources import PREFIX, find_toml, origin_of, place_in_toml
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.errors import FleetError, FleetUnavailable, OperationRefused, SettingsError
from toolfleet_registry.settings import Settings, load_declared
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import ModuleChanges

_MOST_FILES = 5_000
_NOT_SOURCE = {"__pycache__", "node_modules", "venv"}  # in addition to folders that begin with a dot

_Scan: TypeAlias = dict[Path, tuple[int, int]]

_POLL_SECONDS = 1.0
_ANSWER_SECONDS = 0.5  # the caller tends the processes meanwhile

_RELOAD_CHECK_SECONDS = 0.5
_REFRESH_SECONDS = 5.0  # for a module that has come back to say what it offers; the fleet is not tended meanwhile

_CHECK_SECONDS = 0.5

_OF_MODULES = ("module_services", "slow_modules", "module_timeouts", "module_headers")
_APPLIED = ("hosts", *_OF_MODULES)
_MODULES = {"scheduler": SCHEDULER, "local_tools": LOCAL}  # that there are by another setting
_BY = Actor.at_command_line()
_Stamp: TypeAlias = tuple[Path, int, int, int]
_AGAIN = "end `toolfleet up` with Ctrl-C, and start it again"


class SettingsLines:
    """The `toolfleet.toml` of the fleet that runs in the folder `start`. `declared` are the settings at the fleet's start.

    `not_applied` says why lines are not in effect, as the run file has it.
    """

    def __init__(self, fleet: LocalFleet, start: Path, declared: Settings, not_applied: dict[str, str]) -> None:
        self._fleet, self._start = fleet, start
        self._in_effect = self._wanted = declared
        self.not_applied = {**not_applied, **_overruled(start)}
        for sentence in self.not_applied.values():
            note(sentence, style="red")
        self._last, self._removed, self._check_at = self._stamp(), set[str](), 0.0
        self._known: _Stamp | None = None  # the file may have been written since it was read

    def check(self) -> bool:
        """Apply what has changed since. Returns at once, but for a question to Redis of half a second at most.

        True when workers with other modules have taken over: these are to be asked what they offer.
        """
        now = time.monotonic()
        if now < self._check_at or self._fleet.is_changing:
            return False
        self._check_at = now + _CHECK_SECONDS
        if self._wanted is not self._in_effect:
            return self._finish()
        before, self._last = self._last, self._stamp()
        if self._last != self._known and self._last == before:  # its writer has finished
            self._known = self._last
            self._apply()
        if self._removed:
            asyncio.run(self._forget())
        return False

    def _stamp(self) -> _Stamp | None:
        toml = find_toml(self._start)
        with contextlib.suppress(OSError):  # it has just gone
            return (toml, (found := toml.stat()).st_ino, found.st_size, found.st_mtime_ns) if toml else None
        return None

    def _apply(self) -> None:
        try:
            declared = load_declared()
        except SettingsError as exc:
            self._say({ANY_MODULE: f"{exc} Until that is corrected, the lines before count."})
            return
        faults = _overruled(self._start)
        wanted = self._in_effect.model_copy(update={name: getattr(declared, name) for name in _APPLIED})
        if others := [name for name in Settings.model_fields if getattr(declared, name) != getattr(wanted, name)]:
            faults |= dict.fromkeys(
                ["", *(_MODULES[name] for name in others if name in _MODULES)],
                f"toolfleet.toml: {', '.join(others)} changed; to apply that, {_AGAIN}.",
            )
        started = self._fleet.settings.module_services.keys() - self._in_effect.module_services.keys()
        served = started | {
            each.name for each in self._fleet.hosted if each.name in declared.hosts or each.spec is None
        }
        for name in served & wanted.module_services.keys():  # what is served stays
            faults[name] = (
                f"[module_services] {name}: there is another module of this name. Rename it; it is applied then."
            )
        services = {name: url for name, url in wanted.module_services.items() if name not in served}
        wanted = wanted.model_copy(update={"module_services": services})
        self._apply_hosts(wanted, started, faults)
        self._apply_modules(wanted, started)
        self._say(faults)

    def _apply_hosts(self, wanted: Settings, started: Collection[str], faults: dict[str, str]) -> None:
        fleet, present = self._fleet, {each.name: each for each in self._fleet.hosted if each.command[0] == "run"}
        others = {process for each in fleet.hosted if each.name not in present for process in each.processes}
        own = {name for name in fleet.processes() if not any(name in each.processes for each in present.values())}
        hosts = declared_hosts(
            wanted, start=self._start, taken={*wanted.modules, *started, *others, *own}, not_applied=faults
        )
        fleet.settings = fleet.settings.model_copy(update={"hosts": wanted.hosts})
        for name in present.keys() - {each.name for each in hosts}:
            note(f"toolfleet.toml: the host {name} is ended")
            fleet.unhost(name)
            self._removed.add(name)
        for each in hosts:
            if present.get(each.name) != each:
                note(f"toolfleet.toml: the host {each.name} is started{' again' if each.name in present else ''}")
                fleet.host(each)
        self._in_effect = self._wanted = self._in_effect.model_copy(update={"hosts": wanted.hosts})

    def _apply_modules(self, wanted: Settings, started: Collection[str]) -> None:
        if all(getattr(wanted, name) == getattr(self._in_effect, name) for name in _OF_MODULES):
            return
        note("toolfleet.toml: modules have changed; workers with the new lines take over")
        self._wanted, fleet = wanted, self._fleet
        own = {name: url for name, url in fleet.settings.module_services.items() if name in started}
        slow = wanted.slow_modules | (fleet.settings.slow_modules & own.keys())
        changes = {name: getattr(wanted, name) for name in _OF_MODULES}
        services = {"module_services": {**wanted.module_services, **own}, "slow_modules": slow}
        fleet.reconfigure(fleet.settings.model_copy(update={**changes, **services}))

    def _finish(self) -> bool:
        """Say what came of the workers that were started."""
        if (refusal := self._fleet.refusal) is not None:
            self._wanted = self._in_effect
            text = f"toolfleet.toml: {refusal} Correct that and save the file: it is applied then."
            self._say({**self.not_applied, ANY_MODULE: text})
            return False
        before, self._in_effect = self._in_effect.module_services, self._wanted
        after = self._in_effect.module_services
        self._removed |= before.keys()
        if changed := [name for name, url in after.items() if before.get(name) != url]:
            note(f"toolfleet.toml: from now on calls reach {', '.join(changed)}")
        if gone := [name for name in before if name not in after]:
            note(f"toolfleet.toml: calls do not reach any more {', '.join(gone)}")
        return True

    def _say(self, faults: dict[str, str]) -> None:
        for sentence in dict.fromkeys(faults.values()):
            if sentence not in self.not_applied.values():
                note(sentence, style="red")
        self.not_applied = faults

    async def _forget(self) -> None:
        """Take what was removed out of the directory, once no process says any more that it serves it."""
        self._removed -= self._in_effect.modules | {each.name for each in self._fleet.hosted}
        with contextlib.suppress(FleetError, OSError, TimeoutError):  # Redis is away: the next try may meet it
            settings = self._fleet.settings
            async with asyncio.timeout(_ANSWER_SECONDS), settings.redis_client() as redis:
                directory, changes = ModuleDirectory(redis, settings), ModuleChanges(redis, settings, _BY)
                hosts = (await directory.read()).hosts.modules  # processes that end still serve
                served = {*await directory.fed(), *(name for name, module in hosts.items() if module.replicas)}
                for name in self._removed - served:
                    with contextlib.suppress(OperationRefused):  # nothing is left of it
                        await changes.remove(name, drain_seconds=0)
                    self._removed.discard(name)


def _overruled(start: Path) -> dict[str, str]:
    """Return the lines that the environment of `up` overrules."""
    found = ((name, origin_of(name, start=start)) for name in _APPLIED if place_in_toml(name, start))
    names = [name for name, origin in found if origin.source == "environment"]
    variables = " and ".join(f"{PREFIX}{name.upper()}" for name in names)
    text = f"toolfleet.toml: {', '.join(names)} count for nothing, as `toolfleet up` was started with {variables}"
    return {ANY_MODULE: f"{text}: unset it, {_AGAIN}."} if names else {}


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
        async with asyncio.timeout(_ANSWER_SECONDS), self._settings.redis_client() as redis:
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
    """The loop of a fleet with its data in `folder`. `tell` gets its processes, now and when they change."""

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
                note(f"{name} is restarted on request")
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
