"""Starts a fleet here, says what runs where, and runs it until a signal ends it: `toolfleet up`."""

import asyncio
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from rich.text import Text

from toolfleet import Caller, ModuleStatus, ToolDefinition, ToolFleet
from toolfleet_cli.commands.up_loop import SettingsLines, UpLoop
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
from toolfleet_cli.local.modules import HostedModule, check_hosted, hosted_modules, own_modules
from toolfleet_cli.local.supervisor import StopRequested
from toolfleet_registry.config.run_file import FOLDER, ListedProcess, RunFile, find_run_file
from toolfleet_registry.config.run_file import NAME as RUN_FILE
from toolfleet_registry.config.setting_sources import MCP_FILE, find_toml
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.directory.directory import Listing, ModuleDirectory
from toolfleet_registry.directory.entries import AnnouncedModule
from toolfleet_registry.errors import FleetError, SettingsError
from toolfleet_registry.headers import SETTING
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.settings import PREFIX, Settings, load_declared, load_settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system.process import hide_process
from toolfleet_tasks.messages.signing import Seal
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
    if "call_contents" not in settings.model_fields_set:  # one's own calls, on one's own machine
        settings = settings.model_copy(update={"call_contents": "all"})
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


def _stay(fleet: LocalFleet, folder: Path, lines: SettingsLines, *, reload: bool) -> None:
    try:
        with _announced(fleet, folder) as tell:
            loop = UpLoop(fleet, folder / FOLDER, lines, reload=reload, tell=tell)
            asyncio.run(_introduce(fleet, folder))
            fleet.watch(loop.check)
    except StopRequested:
        say("Ending: the calls that run may finish. Once more, and they go back into their queues.")
        raise


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
        tools = await client.tools(_OWNER)
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
