"""Finds the MCP servers of an `mcp.json` that lies where a fleet is started: `toolfleet up` serves each of them as a module."""

from collections.abc import Iterable
from pathlib import Path

from toolfleet_cli.console.output import note
from toolfleet_cli.hosting.mcp_file import servers_in
from toolfleet_cli.local.hosted_modules import HostedModule, check_hosted
from toolfleet_cli.processes.extras import need
from toolfleet_registry.config.setting_sources import MCP_FILE, find_toml
from toolfleet_registry.errors import SettingsError


def found_servers(start: Path, *, taken: Iterable[str]) -> list[HostedModule]:
    """Those of the file beside `toolfleet.toml`, or in `start` where there is none; and say so in one line.

    `taken` are the names of other modules and processes. Raises `SettingsError` for a file that is none, a server that cannot
    be meant, and a name that is taken.
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
