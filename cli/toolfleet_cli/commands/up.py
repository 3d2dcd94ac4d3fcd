"""Runs `toolfleet up`: starts a fleet here, says what runs where, applies changes while it runs, and ends it at a signal."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

from redis.asyncio import Redis
from rich.text import Text

from toolfleet import Caller, ModuleStatus, ToolDefinition, ToolFleet
from toolfleet_cli.commands.logs import LogExcerpts, LogTail, RestartRequests
from toolfleet_cli.console import (
    add_row,
    missing_for,
    need,
    note,
    plain,
    say,
    show_load_errors,
    show_table,
    shown_url,
    table,
)
from toolfleet_cli.hosting.mcp_file import servers_in
from toolfleet_cli.local.environment import SECRETS
from toolfleet_cli.local.fleet import LocalFleet, local_fleet
from toolfleet_cli.local.modules import (
    HostedModule,
    check_hosted,
    declared_hosts,
    hosted_modules,
    own_modules,
    own_tools,
)
from toolfleet_cli.local.supervisor import StopRequested
from toolfleet_registry.config.run_file import ANY_MODULE, FOLDER, ListedProcess, RunFile, find_run_file
from toolfleet_registry.config.run_file import NAME as RUN_FILE
from toolfleet_registry.config.setting_sources import MCP_FILE, PREFIX, find_toml, origin_of, place_in_toml
from toolfleet_registry.contracts.names import ARTIFACTS, LOCAL, PROGRAMS, SCHEDULER
from toolfleet_registry.directory.directory import Listing, ModuleDirectory
from toolfleet_registry.directory.entries import AnnouncedModule
from toolfleet_registry.errors import FleetError, FleetUnavailable, OperationRefused, SettingsError
from toolfleet_registry.headers import SETTING
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.settings import Settings, load_declared, load_settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system.process import hide_process
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import ModuleChanges
from toolfleet_tasks.queues import lane_of

_FLOWER_PORT = 5555  # its usual one; another if that is taken
_OWNER = Caller(permission="owner", allowed_modules="*")
_FAVOURITE = "research.search_docs"

_NO_MODULES = """There are no modules yet. These add one, from another shell in this folder, and so does a line in toolfleet.toml:

  toolfleet host folder FOLDER     # the functions with @tool in its Python files
  toolfleet modules add NAME URL   # a module that is served at this address
"""
# What each process of this folder decides for itself.
_OWN_AFFAIRS = {
    "hosts",
    "secrets",
    "lane",
    "worker_concurrency",
    "drain_seconds",
    "log_format",
    "log_level",
    "gateway_port",
}
# Where the fleet is; what else an agent must know is in there.
_AGENTS_NEED = {"redis_url", "broker_url", "sentinel_master", "key_prefix", "registry_url"}

_KNOWN_SECONDS = 10.0
"""The seconds that ready hosts have to announce themselves."""

_POLL_SECONDS = 0.05

_MOST_FILES = 5_000
_NOT_SOURCE = {"__pycache__", "node_modules", "venv"}  # in addition to folders that begin with a dot

_Scan: TypeAlias = dict[Path, tuple[int, int]]

_RECHECK_SECONDS = 1.0
_ANSWER_SECONDS = 0.5  # the caller tends the processes meanwhile

_RELOAD_CHECK_SECONDS = 0.5
_REFRESH_SECONDS = 5.0  # for a module that has come back to say what it offers; the fleet is not tended meanwhile

_CHECK_SECONDS = 0.5

_OF_MODULES = ("module_services", "slow_modules", "module_timeouts", "module_headers")
_APPLIED = ("hosts", *_OF_MODULES)
# Modules that there are by another setting.
_MODULES = {"scheduler": SCHEDULER, "local_tools": LOCAL, "artifact_store": ARTIFACTS, "programs": PROGRAMS}
_BY = Actor.at_command_line()
_Stamp: TypeAlias = tuple[Path, int, int, int]
_AGAIN = "end `toolfleet up` with Ctrl-C, and start it again"


def run_up(
    modules: Sequence[Path] = (), tools: Sequence[Path] = (), *, reload: bool = False, gateway: bool = True
) -> int:
    """Run a fleet in the working folder, with the modules and the tools in these folders, until a signal ends it.

    Returns the exit code.

    With `reload` a module is restarted when its files change. `gateway`: whether there is one.
    """
    folder = Path.cwd()
    if running := find_run_file(folder):
        raise FleetError(f"A fleet is running here already (process {running.pid}): use it, or stop it first.")
    settings = load_settings()
    settings = settings.model_copy(
        update={name: value for name, value in _own_values(folder).items() if name not in settings.model_fields_set}
    )
    declared, not_applied = load_declared(), dict[str, str]()
    own = own_modules(modules, settings.modules)
    taken = {*settings.modules, *(each.name for each in own)}
    hosted = hosted_modules(tools, settings, start=folder, taken=taken, not_applied=not_applied)
    if hosted:
        need("host")
    hosted += found_servers(folder, taken={*taken, *(name for each in hosted for name in each.processes)})
    if settings.hide_process:
        hide_process()
    Seal(settings.signing_key)  # here a missing library is one sentence
    say("Starting a fleet …")
    try:
        with local_fleet(
            folder / FOLDER,
            settings=settings,
            own_modules=own,
            hosted=hosted,
            flower_port=_FLOWER_PORT,
            gateway=gateway and can_have_gateway(),
            announce=note,
        ) as fleet:
            _stay(fleet, folder, SettingsLines(fleet, folder, declared, not_applied), reload=reload)
    except StopRequested:
        say("All has ended.")
    return 0


def can_have_gateway() -> bool:
    """Return whether what a gateway needs is installed; says what is not."""
    if missing := missing_for("gateway"):
        note(f"There is no gateway, as {' and '.join(missing)} is not installed: pip install 'toolfleet[gateway]'.")
        return False
    return True


def _stay(fleet: LocalFleet, folder: Path, lines: "SettingsLines", *, reload: bool) -> None:
    try:
        with _announced(fleet, folder) as tell:
            loop = UpLoop(fleet, folder / FOLDER, lines, reload=reload, tell=tell)
            asyncio.run(_introduce(fleet, folder))
            fleet.watch(loop.check)
    except StopRequested:
        say("Ending: the calls that run may finish. Once more, and they go back into their queues.")
        raise


def _own_values(folder: Path) -> dict[str, Any]:
    """Return values for settings that are not set: the calls are the user's own, on the user's machine."""
    values: dict[str, Any] = {"call_contents": "all"}
    if not missing_for("artifacts"):
        values["artifact_store"] = (folder / FOLDER / "artifacts").as_uri()
    return values


@contextmanager
def _announced(
    fleet: LocalFleet, folder: Path
) -> Generator[Callable[[Mapping[str, ListedProcess], Mapping[str, str]], None]]:
    """Let the other commands find the fleet while it runs.

    The yielded function publishes its processes, and settings that are not applied.
    """
    # Git must not see the data; the folder is ours alone, but for the tools.
    (folder / FOLDER / ".gitignore").write_text("*\n!tools/\n!tools/**\n")

    def tell(processes: Mapping[str, ListedProcess], not_applied: Mapping[str, str]) -> None:
        values = fleet.settings.model_dump(mode="json", exclude_defaults=True, exclude=_OWN_AFFAIRS | SECRETS)
        RunFile(
            pid=os.getpid(),
            settings=values,
            flower_url=fleet.flower_url,
            gateway_url=fleet.gateway_url,
            processes=dict(processes),
            not_applied=dict(not_applied),
        ).write(folder)

    tell({}, {})
    try:
        yield tell
    finally:
        (folder / FOLDER / RUN_FILE).unlink(missing_ok=True)


async def _introduce(fleet: LocalFleet, folder: Path) -> None:
    """Say what runs where, and how to try it."""
    late = {each.module for each in fleet.processes().values() if each.module and each.state != "ready"}
    for fault in await unannounced(fleet.settings, {each.name for each in fleet.hosted} - late):
        note(fault)
    async with ToolFleet(settings=fleet.settings) as client:
        statuses = await client.modules.refresh()
        tools = [tool for tool in await client.tools(_OWNER) if not tool.name.startswith(f"{ARTIFACTS}.")]
    statuses.pop(ARTIFACTS, None)  # a part of the workers, which has no module of the user's yet to read anything of
    places = await module_places(fleet.settings)
    say("")
    say(f"Redis   {shown_url(str(fleet.settings.redis_url))}")
    say(f"Flower  {fleet.flower_url}")
    if fleet.flower_login is not None:
        say(f"        its name and password are in {fleet.flower_login}")
    if fleet.gateway_url is not None:
        say(f"Gateway {fleet.gateway_url}")
        say(f"Console {fleet.gateway_url}/console")
        say(f"Key     {fleet.gateway_key or 'the TOOLFLEET_GATEWAY_KEY that is set here'}")
    say(f"Logs    {folder / FOLDER / 'logs'}")
    say("")
    _print_modules(fleet, statuses, places, late - statuses.keys())
    show_load_errors([error for status in statuses.values() for error in status.load_errors])
    for name in sorted(fleet.settings.module_headers.keys() - statuses.keys()):
        note(f"{SETTING} names the module {name!r}, which is not there: it is misspelt, or still to be added.")
    if tools:
        lines = "\n".join(f"  {line}" for line in ("toolfleet tools list", *_example(tools)))
        say(f"\nTry it, from another shell in this folder:\n\n{lines}\n")
    exports = "\n".join(f"  {line}" for line in _exports(fleet.settings))
    key = "" if fleet.settings.signing_key is None else ", and the TOOLFLEET_SIGNING_KEY that is set here"
    say(f"An agent elsewhere on this machine needs{key}:\n\n{exports}\n")
    if fleet.settings.signing_key is None:
        note(
            "Calls are not signed: every program that can write to Redis can act for any user. TOOLFLEET_SIGNING_KEY changes that."
        )
    say("The fleet is up. Ctrl-C ends it.")


def _exports(settings: Settings) -> list[str]:
    """Return the variables for an agent of this fleet.

    A password is not shown: the user has given us such an address, and knows it.
    """
    values = settings.model_dump(mode="json", exclude_defaults=True, include=_AGENTS_NEED)
    return [_export(name, str(value)) for name, value in values.items()]


def _export(name: str, value: str) -> str:
    shown = shown_url(value)
    return f"export {PREFIX}{name.upper()}={quote(shown)}" + ("" if shown == value else "  # with its password")


def _print_modules(
    fleet: LocalFleet, statuses: dict[str, ModuleStatus], places: Mapping[str, str], late: AbstractSet[str]
) -> None:
    if not statuses and not late:
        say(_NO_MODULES)
        return
    shown = table("MODULE", "LANE", "TOOLS", "URL")
    for name in sorted(late):
        add_row(shown, name, lane_of(name, fleet.settings), Text("not ready yet", style="red"), "-")
    for name, status in statuses.items():
        tools = str(status.tools) if status.ok else Text(plain(status.error or ""), style="red")
        url = places.get(name) or (str(fleet.settings.local_tools) if name == LOCAL else "-")
        add_row(shown, name, lane_of(name, fleet.settings), tools, shown_url(url))
    show_table(shown)


def _example(tools: Sequence[ToolDefinition]) -> list[str]:
    """Return a harmless command that is likely to work: the example's, else the reading tool with the fewest required arguments."""
    if any(tool.name == _FAVOURITE for tool in tools):
        return [f"toolfleet call {_FAVOURITE} query=redis max_results=1"]
    harmless = [tool for tool in tools if effect_of(tool) == "read"]
    if not harmless:
        return []
    simplest = min(harmless, key=lambda tool: len(_required(tool)))
    return [" ".join(["toolfleet call", simplest.name, *(f"{name}=…" for name in _required(simplest))])]


def _required(tool: ToolDefinition) -> list[str]:
    return [str(name) for name in input_schema(tool).get("required", [])]


def found_servers(start: Path, *, taken: Iterable[str]) -> list[HostedModule]:
    """Return the servers of the file next to `toolfleet.toml`, or in `start` if there is none; and say so in one line.

    `taken` are the names of other modules and processes. Raises `SettingsError` for an invalid file or server, and a
    name that is taken.
    """
    toml = find_toml(start)
    file = (start if toml is None else toml.parent).resolve() / MCP_FILE
    if not file.is_file():
        return []
    servers = servers_in(file, may_be_none=True)
    if not (names := sorted(servers)):
        return []
    try:
        need("host mcp")
    except SettingsError as exc:  # it may be there for other programs only
        note(f"The servers of {file} are not served: {exc}")
        return []
    known = set(taken)
    found = [HostedModule(name, ("mcp", name, "--config", str(file)), file, spec=servers[name]) for name in names]
    for each in found:
        check_hosted(each, known)
        known.update(each.processes)
    note(f"The MCP servers of {file} are modules: {', '.join(names)}")
    return found


async def unannounced(settings: Settings, modules: Collection[str]) -> list[str]:
    """Return when hosts serve all of these modules, or after so long: with a sentence for each that none serves.

    Raises `FleetUnavailable` when Redis does not answer.
    """
    async with settings.redis_client() as redis:
        directory = ModuleDirectory(redis, settings)
        give_up_at = asyncio.get_running_loop().time() + _KNOWN_SECONDS
        while True:
            listing = await directory.read()
            missing = [name for name in sorted(modules) if not _is_served(name, listing)]
            if not missing or asyncio.get_running_loop().time() > give_up_at:
                return [f"The fleet does not know the module {name!r} yet: {_why(name, listing)}." for name in missing]
            await asyncio.sleep(_POLL_SECONDS)


async def module_places(settings: Settings) -> dict[str, str]:
    """Return the URL of each module, with the number of further hosts that serve it."""
    async with settings.redis_client() as redis:
        entries = (await ModuleDirectory(redis, settings).read()).entries
    places = dict(settings.module_services)
    for name, entry in entries.items():
        if name not in places and entry.url is not None:
            others = len(entry.replicas) - 1 if isinstance(entry, AnnouncedModule) else 0
            places[name] = entry.url + (f" and {others} more" if others > 0 else "")
    return places


def _is_served(module: str, listing: Listing) -> bool:
    entry = listing.entries.get(module)
    return isinstance(entry, AnnouncedModule) and bool(entry.replicas)


def _why(module: str, listing: Listing) -> str:
    reasons = [host.reason for host in listing.hosts.refused if host.module == module]
    return reasons[0] if reasons else "its host has not announced itself"


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
        self._check_at = time.monotonic() + _RECHECK_SECONDS
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
