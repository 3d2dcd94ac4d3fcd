"""Serves a tool folder over HTTP until a signal ends it, and has the fleet look at it when its tools change."""

import logging
import os
import socket
import sys
from pathlib import Path

import uvicorn

from toolfleet_modules.hosts.folder.folder_host import FolderHost
from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.folder.scan import ScanRules
from toolfleet_modules.hosts.processes.fence import Fence
from toolfleet_modules.requests.authentication import KEY_VARIABLE
from toolfleet_registry.config.host_settings import HostSpec
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.directory.requested_probes import RequestedProbes
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.private_process import hide_process

_log = logging.getLogger("toolfleet.host")

_REDIS_SECONDS = 5.0
_PROBE_SECONDS = 10.0
_GRACE_SECONDS = 5  # for calls that run when the host is to end


class FolderServer:
    """Raises `SettingsError` for a folder that is none, a name that will not do, and a variable that is not set."""

    def __init__(self, settings: Settings, folder: Path, *, name: str | None) -> None:
        self.name = name or folder.resolve().name
        self._settings = settings
        if not is_module_name(self.name) or self.name in {LOCAL, SCHEDULER}:
            raise SettingsError(f"{self.name[:80]!r} is no name for a module: give it another one with --name.")
        if not folder.is_dir():
            raise SettingsError(f"There is no folder {folder}.")
        spec = settings.hosts.get(self.name) or HostSpec(folder=folder)
        self._options = options_of(settings, spec, self.name, folder)

    def run(self, address: str, port: int) -> int:
        """Serve it. Returns the exit code."""
        logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s", stream=sys.stderr)
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        hide_process()  # its tools are this user's processes, too: they must not read its key from its environment
        host = FolderHost(self._options, listener=self._request_probe)
        config = uvicorn.Config(
            host.app,
            host=address,
            port=port,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        listener = _listening(address, port)
        with listener:
            _log.info("%s is served at http://%s:%d", self.name, address, listener.getsockname()[1])
            server = uvicorn.Server(config)
            server.run(sockets=[listener])
            return 0 if server.started else 1

    async def _request_probe(self) -> None:
        """Have the fleet's workers ask what there is now. Without its Redis they find out at their next look."""
        url = self._settings.redis_url
        if url is None:
            return
        try:
            async with async_client(
                url, master=self._settings.sentinel_master, timeout_seconds=_REDIS_SECONDS
            ) as redis:
                await RequestedProbes(redis, self._settings.keys).request(seconds=_PROBE_SECONDS)
        except (FleetUnavailable, OSError) as exc:
            _log.warning("The fleet learns of the change at its next look: %s", exc)


def options_of(settings: Settings, spec: HostSpec, name: str, folder: Path) -> FolderOptions:
    """How a folder is served by these settings. Raises `SettingsError` for a variable that is not set."""
    if missing := [each for each in spec.variables if each not in os.environ]:
        raise SettingsError(f"The tools of {name!r} need the variable {missing[0]}, which is not set.")
    memory = None if spec.memory_mb is None else spec.memory_mb * 2**20
    fence = Fence(
        memory_bytes=memory,
        cpu_seconds=spec.cpu_seconds,
        open_files=spec.open_files,
        processes=spec.processes,
        isolation=spec.isolation,
        variables={each: os.environ[each] for each in spec.variables},
    )
    return FolderOptions(
        name,
        folder,
        description=spec.description,
        key=os.environ.get(KEY_VARIABLE, ""),
        security=settings.tool_security,
        rules=ScanRules().without(settings.tool_allowed_imports),
        fence=fence,
        debounce_ms=settings.tool_debounce_ms,
        load_seconds=settings.tool_load_seconds,
        is_lazy=settings.tool_lazy,
        processes=settings.tool_processes,
        retire_seconds=settings.max_timeout,
    )


def _listening(address: str, port: int) -> socket.socket:
    """The socket, taken before anything is started. Raises `SettingsError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except OSError as exc:
        listener.close()
        raise SettingsError(f"Nothing can listen at {address}:{port}: {exc.strerror or exc}.") from exc
    return listener
