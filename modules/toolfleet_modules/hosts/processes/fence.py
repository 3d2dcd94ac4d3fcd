"""Puts the fence around a process that runs what others have written: what it inherits, and how much it may take."""

import contextlib
import os
import resource
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Isolation = Literal["none", "bwrap"]

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_NO_NEW_PRIVS = 38
_TEMPORARY = "/tmp"  # noqa: S108 - of which a process has one of its own
_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ")


class FenceMissing(Exception):
    """The machine has not what the fence needs. The message says what."""


@dataclass(frozen=True, slots=True)
class Fence:
    """`memory_bytes`: of addresses, `cpu_seconds`: in its whole life, `open_files`, `processes`: of its user's, all; `None` for no limit.

    `readable`: folders that it reads wherever they are, also below `/tmp`, of which it has its own. `variables`: what its environment has beside the machine's language, time zone and `PATH`.
    """

    memory_bytes: int | None = 4 * 2**30
    cpu_seconds: int | None = None
    open_files: int | None = 1024
    processes: int | None = None
    isolation: Isolation = "none"
    readable: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def environment(self, folder: Path) -> dict[str, str]:
        """The whole environment of a process whose own folder that is."""
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
        files = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", _TEMPORARY]
        python = [word for path in _python_in_temporary() for word in ("--ro-bind", path, path)]
        for path in self.readable:
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)  # what comes there later is seen then
            python += ["--ro-bind-try", str(path), str(path)]
        own = ["--bind", str(folder), str(folder), "--chdir", str(folder)]
        return [program, *apart, *files, *python, *own, "--", *command]

    def limits(self) -> dict[str, int | None]:
        """What `enclose` takes, as JSON."""
        return {name: value for name, value in asdict(self).items() if name in _LIMITS}


def enclose(limits: Mapping[str, int | None]) -> None:
    """Set this process's limits, take the way to more privileges from it, and have it end when its host does."""
    for name, kind in _LIMITS.items():
        if (most := limits.get(name)) is not None:
            hard = resource.getrlimit(kind)[1]
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - for this one process

        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _python_in_temporary() -> list[str]:
    """What this Python needs that lies where a process of its own has nothing: an environment somebody tries out."""
    found = {str(Path(each).absolute()) for each in (sys.prefix, sys.base_prefix, *sys.path) if each}
    return sorted(each for each in found if Path(each).is_relative_to(_TEMPORARY) and Path(each).is_dir())


_LIMITS = {
    "memory_bytes": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}
