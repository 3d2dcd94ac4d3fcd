"""Gives the programs of each host a user of their own, where a fleet is root's, and says what they can read where that cannot be."""

import hashlib
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from toolfleet_cli.local.modules import HostedModule
from toolfleet_modules.hosts import guard
from toolfleet_modules.hosts.child_process import Fence
from toolfleet_registry.config.host_settings import FencedSpec, FolderSpec, Places
from toolfleet_registry.config.setting_sources import find_toml, private_places
from toolfleet_registry.settings import Settings

_USERS = range(61_184, 65_520)  # those that systemd gives to services as they start: no service has one for good
_TRY_SECONDS = 20
_TRY = 'for path; do [ ! -e "$path" ] || [ -r "$path" ] || { echo "it cannot read $path"; exit 1; }; done'
_CHECK_SECONDS = 0.5
_READ = "toolfleet.toml, .toolfleet/gateway-key, and the `env` of other hosts' programs"


class HostUsers:
    """The users of the fleet whose data are in `data`.

    `announce` gets a sentence for each thing that is not hidden from programs.
    """

    def __init__(self, data: Path, settings: Settings, announce: Callable[[str], None]) -> None:
        toml = find_toml(data.resolve().parent)
        self._beside = data.resolve().parent if toml is None else toml.parent
        self._data, self._settings, self._announce = data, settings, announce
        self._private = private_places(self._beside, settings.secrets)
        self._users = dict[str, int | None]()
        self._within = dict[str, list[str]]()  # by module: processes whose programs work where what is private lies
        self._known, self._check_at = self._private_now(), 0.0
        self._has_said = False

    def user_of(self, hosted: HostedModule) -> int | None:
        """The user for the programs of a host, always the same one. None: it has no programs, or they run as the host."""
        if hosted.name not in self._users:
            spec = hosted.spec or self._settings.hosts.get(hosted.name)
            if hosted.command[0] == "folder" and not isinstance(spec, FolderSpec):
                spec = FolderSpec(folder=hosted.source)
            places = spec.places(self._beside) if isinstance(spec, FencedSpec) and spec.isolation == "none" else None
            user = self._users[hosted.name] = None if places is None else self._chosen(hosted, places)
            if user is not None and isinstance(spec, FolderSpec) and spec.allow_builds:
                self._announce(
                    f"Packages that are built for {hosted.name} run their code as root, and can read {_READ}."
                )
        return self._users[hosted.name]

    def forget(self, module: str) -> None:
        """Choose again for a host that is described in another way."""
        self._users.pop(module, None)
        self._within.pop(module, None)

    def uncovered(self) -> set[str]:
        """Return the processes whose programs may see a file that was replaced: the mount that hides it was on the old one. Closes that to others."""
        now = time.monotonic()
        if not self._within or now < self._check_at:
            return set()
        self._check_at = now + _CHECK_SECONDS
        before, self._known = self._known, self._private_now()
        if before == self._known:
            return set()
        self._close()
        found = {process for processes in self._within.values() for process in processes}
        self._announce(
            f"A file beside toolfleet.toml was replaced. These restart, or their programs could read it: {', '.join(sorted(found))}."
        )
        return found

    def _chosen(self, hosted: HostedModule, places: Places) -> int | None:
        if os.geteuid() != 0:
            if not self._has_said:
                self._has_said = True
                self._announce(
                    f"The programs of hosts run as your user, and can read what you can, such as {_READ}. What keeps them "
                    'apart: isolation = "bwrap", or root, as which `up` gives the programs of each host a user of their own.'
                )
            return None
        self._close()
        user = self._free(hosted.name)
        if fault := self._fault(user, places):
            self._announce(f"The programs of {hosted.name} run as root, and can read {_READ}: {fault}.")
            return None
        if any(each.is_relative_to(path) for each in self._private for path in places.writable):
            self._within[hosted.name] = hosted.processes
            self._announce(
                f"The programs of {hosted.name} can change files beside toolfleet.toml: `directory` in [hosts.{hosted.name}] "
                "gives them a folder of their own."
            )
        return user

    def _fault(self, user: int, places: Places) -> str:
        """Try whether this user can have here what a host's programs need. Empty: it can."""
        fence = Fence(user=user, private=self._private, **places._asdict())
        with tempfile.TemporaryDirectory() as own:
            shell = ["/bin/sh", "-c", _TRY, "sh", *map(str, (*places.writable, *places.readable))]
            command = guard.run_command(os.getpid(), {"user": user}, fence.paths(Path(own)), shell)
            tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRY_SECONDS, cwd=own)
        return (tried.stdout or tried.stderr).strip() if tried.returncode else ""

    def _free(self, name: str) -> int:
        """The same one with each start, so that an operator can give it a folder."""
        digest = hashlib.sha256(f"{self._data.resolve()}\0{name}".encode()).digest()
        first = int.from_bytes(digest[:4], "big") % len(_USERS)
        taken = {each.pw_uid for each in pwd.getpwall()} | set(self._users.values())
        chosen: int = next(each for each in (*_USERS[first:], *_USERS[:first]) if each not in taken)
        return chosen

    def _private_now(self) -> list[int]:
        return [path.stat().st_ino if path.exists() else 0 for path in self._private]

    def _close(self) -> None:
        """Take from others what only the owner and the fleet have to read. A file's group keeps what it may."""
        for path in self._private:
            kept = 0o7700 if path.is_dir() else 0o7770
            if path.exists() and (mode := path.stat().st_mode & 0o7777) & ~kept:
                try:
                    path.chmod(mode & kept)
                except OSError as exc:
                    self._announce(f"{path} can be read by the programs of hosts: {exc.strerror}.")
