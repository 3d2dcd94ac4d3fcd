"""Puts the fence around a process that runs what others have written: what it inherits, and how much it may take."""

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from toolfleet_modules.hosts.processes.enclosure import LIMITED, stand_back

Isolation = Literal["none", "bwrap"]

_TEMPORARY = "/tmp"  # noqa: S108 - of which a process has one of its own
_INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ")


class FenceMissing(Exception):
    """The machine has not what the fence needs. The message says what."""


@dataclass(frozen=True, slots=True)
class Fence:
    """`memory_bytes`: of addresses, `cpu_seconds`: in its whole life, `open_files`, `processes`: of its user's, all; `None` for no limit.

    `nice`: how far it stands back where the processor is wanted by others, from 0 to 19; a host that stands back further passes that on. `readable`: folders that it reads wherever they are, also below `/tmp`, of which it has its own. `variables`: what its environment has beside the machine's language, time zone and `PATH`.
    """

    memory_bytes: int | None = 4 * 2**30
    cpu_seconds: int | None = None
    open_files: int | None = 1024
    processes: int | None = None
    nice: int = 0
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
        return {name: value for name, value in asdict(self).items() if name in LIMITED or name == "nice"}

    def lower_priority(self, process: int) -> None:
        """Have a process that was just started stand back as soon as that, not when it encloses itself: its interpreter's start costs most."""
        with contextlib.suppress(OSError):  # it has ended
            stand_back(process, self.nice)


def _python_in_temporary() -> list[str]:
    """What this Python needs that lies where a process of its own has nothing: an environment somebody tries out."""
    found = {str(Path(each).absolute()) for each in (sys.prefix, sys.base_prefix, *sys.path) if each}
    return sorted(each for each in found if Path(each).is_relative_to(_TEMPORARY) and Path(each).is_dir())
