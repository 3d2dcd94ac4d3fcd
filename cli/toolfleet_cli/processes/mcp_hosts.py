"""Serves an MCP server, or each one of a file by a process of its own; one that has ended is restarted."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfleet_cli.console.output import say
from toolfleet_cli.hosting.host_server import serve_host
from toolfleet_cli.hosting.mcp import mcp_host
from toolfleet_cli.hosting.mcp_file import servers_in
from toolfleet_cli.hosting.mcp_login import log_in
from toolfleet_cli.hosting.mcp_words import spec_of
from toolfleet_cli.hosting.named_host import toml_folder
from toolfleet_cli.local.stop_signals import StopRequested, stop_signals
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.config.host_settings import McpSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 15.0  # for a host to end its server
_BACK_OFF_SECONDS = (0.5, 30.0)  # before a host is restarted: at first, and at most
_LASTING_SECONDS = 60.0  # after which its end is the first one again


@dataclass(frozen=True, slots=True)
class McpCommand:
    """The parsed words of `toolfleet host mcp`; `facts` are additional fields of the server's spec."""

    name: str | None
    command: Sequence[str]
    url: str | None
    config: Path | None
    env: Sequence[str]
    headers: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def serve_mcp(asked: McpCommand, address: str, port: int, *, announces: bool, announce_url: str | None) -> int:
    """Serve it, or all of its file, in the foreground. Returns the exit code. Raises `SettingsError`."""
    if asked.config is not None and asked.name is None:
        return _serve_whole_file(asked, asked.config, address, port, announces=announces)
    if asked.name is None:
        raise SettingsError("Name the module, or a file of servers with --config.")
    if asked.config is None:
        facts = {"command": asked.command, "url": asked.url, **asked.facts}
        spec, beside = spec_of(env=asked.env, headers=asked.headers, **facts), Path.cwd()
    else:
        spec, beside = _named_server(asked, asked.name, asked.config), asked.config.absolute().parent
    settings = load_settings()
    host = mcp_host(settings, spec, name=asked.name, beside=beside, config=asked.config)
    say(f"{host.name}: the tools of {spec.url or spec.command[0]}")
    return serve_host(
        host, address, port, announced_by=settings if announces else None, url=announce_url, metered_by=settings
    )


def log_in_mcp(asked: McpCommand) -> None:
    """Log a person in at the server of a file, or of `[hosts.NAME]`. Raises `SettingsError`."""
    if asked.name is None:
        raise SettingsError("Name the module whose server you log in at.")
    settings = load_settings()
    if asked.config is not None:
        spec = _named_server(asked, asked.name, asked.config)
        log_in(settings, spec, asked.name, say, beside=asked.config.absolute().parent)
        return
    if asked.command or asked.url or asked.env or asked.headers:
        raise SettingsError("With --login, toolfleet.toml or the file of --config says all about the server.")
    described = settings.hosts.get(asked.name)
    if not isinstance(described, McpSpec):
        raise SettingsError(f"There is no [hosts.{asked.name[:80]}] with a url: --login needs one, or --config.")
    log_in(settings, described, asked.name, say, beside=toml_folder(Path.cwd()))


def _serve_whole_file(asked: McpCommand, config: Path, address: str, port: int, *, announces: bool) -> int:
    known = _servers_of(asked, config)
    options = ["--address", address]
    options += ["--per-caller"] if asked.facts.get("scope") == "caller" else []
    options += [f"--{fact}" for fact in ("trusted", "asks", "pin") if asked.facts.get(fact)]
    options += [] if announces else ["--no-announce"]
    say(f"{config}: {', '.join(known)}")
    return serve_file(config, list(known), options, port)


def _named_server(asked: McpCommand, name: str, config: Path) -> McpSpec:
    known = _servers_of(asked, config)
    if name not in known:
        raise SettingsError(f"{config} has no server that is named {name[:80]!r}; it has: {', '.join(known)}.")
    return known[name]


def _servers_of(asked: McpCommand, config: Path) -> dict[str, McpSpec]:
    if asked.command or asked.url or asked.env or asked.headers:
        raise SettingsError("With --config, the file says all about its servers: leave the others out.")
    return {each: spec.model_copy(update=dict(asked.facts)) for each, spec in servers_in(config).items()}


@dataclass(slots=True)
class _ServedServer:
    name: str
    command: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None
    begins_at: float = 0.0
    pause: float = _BACK_OFF_SECONDS[0]

    def watch(self) -> None:
        """Start it if it does not run, and its pause is over."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            say(f"{self.name}: its host has ended ({self.process.returncode}); another is started.")
            stop(self.process, patience_seconds=0)  # what it has left
            if now - self.begins_at > _LASTING_SECONDS:
                self.pause = _BACK_OFF_SECONDS[0]
            self.process, self.begins_at = None, now + self.pause
            self.pause = min(self.pause * 2, _BACK_OFF_SECONDS[1])
        if self.process is None and now >= self.begins_at:
            self.process, self.begins_at = spawn(self.command), now


def serve_file(file: Path, names: Sequence[str], options: Sequence[str], port: int) -> int:
    """Serve these servers of a file until a signal ends it; from `port` on, one port for each, if it is not 0. Returns the exit code."""
    program = [sys.executable, "-c", "from toolfleet_cli import main; main()", "host", "mcp"]
    served = [
        _ServedServer(name, [*program, name, "--config", str(file), "--port", str(port and port + number), *options])
        for number, name in enumerate(names)
    ]
    with stop_signals() as signals:
        try:
            while True:
                signals.check()
                for each in served:
                    each.watch()
                time.sleep(_POLL_SECONDS)
        except StopRequested:
            pass
        finally:
            running = [each.process for each in served if each.process is not None]
            for process in running:
                process.terminate()
            for process in running:
                stop(process, patience_seconds=_PATIENCE_SECONDS)
    return 0
