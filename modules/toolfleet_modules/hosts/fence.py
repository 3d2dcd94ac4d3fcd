"""Puts the fence around a process that runs what others have written: what it inherits, and how much it may take."""

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolfleet_modules.hosts.enclosure import HIDE, LIMITED, OWN, READ, WORK, stand_back

Isolation = Literal["none", "bwrap"]

USER_VARIABLE = "TOOLFLEET_HOST_USER"
"""The user that the programs of a host run as, by its number: `toolfleet up` chooses one, and tells the host."""

_TEMPORARY = "/tmp"  # noqa: S108 - of which a process has one of its own
# What programs need of the system: none of it is a fleet's.
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/sys/devices/system/cpu"),
    *(f"/etc/{name}" for name in ("alternatives", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")),
    *(f"/etc/{name}" for name in ("localtime", "mime.types", "nsswitch.conf", "passwd", "pki/tls/certs", "ssl/certs")),
)
_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ")


class FenceMissing(Exception):
    """The machine has not what the fence needs. The message says what."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The limits of a process.

    `memory_bytes`: of addresses, `cpu_seconds`: in its whole life, `open_files`, `processes`: of its user's, all;
    `None` for no limit.

    `nice`: its CPU priority, from 0 to 19; a host with a higher one passes that on. `variables`: its environment in
    addition to the machine's language, time zone and `PATH`. `user`: the user that it runs as, if the host is root's.
    It works in the `writable` folders as their owner does, reads the `readable` ones, and does not see the `private`
    ones. With bubblewrap it reads all of these and changes none.
    """

    memory_bytes: int | None = 4 * 2**30
    cpu_seconds: int | None = None
    open_files: int | None = 1024
    processes: int | None = None
    nice: int = 0
    isolation: Isolation = "none"
    user: int | None = None
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the whole environment of a process with this own folder."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        own = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**inherited, **own, **self.variables}

    def command(self, command: list[str], folder: Path) -> list[str]:
        """The command as it is to be started. Raises `FenceMissing` where the machine has no bubblewrap."""
        if self.isolation == "none":
            return command
        program = shutil.which("bwrap")
        if program is None:
            raise FenceMissing('isolation = "bwrap" needs bubblewrap, which is not installed here.')
        apart = ["--unshare-all", "--die-with-parent", "--new-session"]
        system = [word for path in _SYSTEM for word in ("--ro-bind-try", path, path)]
        files = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", _TEMPORARY]
        self._make_readable()
        needed = {*self.writable, *self.readable, *_python_paths()}
        shown = sorted({real for path in needed for each in self._shown(path) for real in (each, each.resolve())})
        files += [word for path in shown for word in ("--ro-bind-try", str(path), str(path))]
        own = ["--bind", str(folder), str(folder), "--chdir", str(folder)]
        return [program, *apart, *system, *files, *own, "--", *command]

    def _make_readable(self) -> None:
        """Make folders that are not there yet: what comes into them later is seen then."""
        for path in self.readable:
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)

    def _shown(self, path: Path) -> list[Path]:
        """The parts of a path that nothing private is in. What comes into a folder later is not seen if something in it is private."""
        private = {form for each in self.private for form in (each, each.resolve())}
        if path in private:
            return []
        if not any(each.is_relative_to(path) for each in private) or not path.is_dir():
            return [path]
        return [part for each in path.iterdir() for part in self._shown(each)]

    def paths(self, folder: Path) -> list[str]:
        """Return the arguments of `enclose` for a process that works in this folder."""
        if self.user is None:
            return []
        self._make_readable()
        kinds = {WORK: self.writable, READ: (*self.readable, *_python_paths()), HIDE: self.private}
        return [f"{OWN}{folder}", *(f"{kind}{path}" for kind, found in kinds.items() for path in found)]

    def limits(self) -> dict[str, int | None]:
        """Return the arguments of `enclose`, as JSON."""
        return {name: getattr(self, name) for name in (*LIMITED, "nice", "user")}

    def lower_priority(self, process: int) -> None:
        """Have a process that was just started stand back as soon as that, not when it encloses itself: its interpreter's start costs most."""
        with contextlib.suppress(OSError):  # it has ended
            stand_back(process, self.nice)


def _python_paths() -> list[Path]:
    """Return the folders of this Python and of the packages that it imports."""
    found = {Path(each).absolute() for each in (sys.prefix, sys.base_prefix, *sys.path) if each}
    return sorted(each for each in found if each.exists() and each != Path.cwd())
