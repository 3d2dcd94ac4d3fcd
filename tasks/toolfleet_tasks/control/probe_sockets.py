"""Probes the workers and beat of this machine, at Unix sockets that only their user reaches.

It needs neither Celery nor Redis: a process that is probed every few seconds pays for each check.
"""

import hashlib
import os
import secrets
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock

Probe = Literal["/livez", "/readyz"]

_DIGITS = 12  # of a digest: they keep the fleets of one user apart
_TOKEN_BYTES = 4  # process ids are no names: two containers may share a folder
_PRIVATE = 0o700
_LONGEST_PLACE = (
    60  # bytes of a folder: with what we put below it, a socket's path has less than the 104 that all systems take
)
_DEAD_SECONDS = 0.5  # for a socket to say that no process listens there, which it does at once


def new_socket_path(role: str, settings: Settings) -> Path:
    """Return a new socket path for a process of this role (a lane, or `beat`) of a fleet."""
    return folder() / f"{_prefix(role, settings)}{secrets.token_hex(_TOKEN_BYTES)}.sock"


def sockets_of(role: str, settings: Settings) -> list[Path]:
    """Return the sockets of this role's processes, including those that were killed."""
    return sorted(folder().glob(f"{_prefix(role, settings)}*.sock")) if is_private(folder()) else []


def says_yes(paths: Iterable[Path], probe: Probe, *, seconds: float) -> bool:
    """Return whether one of them answers with 200, within so many seconds for all of them."""
    ends_at = machine_clock.monotonic() + seconds
    return any(_ask(path, probe, ends_at) for path in paths)


def folder() -> Path:
    """A folder of this user's own. Nothing in it outlives a restart of the machine, or of a container."""
    place = os.environ.get("TMPDIR") or _COMMON
    return Path(place if len(place) <= _LONGEST_PLACE else _COMMON) / f"toolfleet-{os.geteuid()}"


def is_private(path: Path) -> bool:
    """Return whether it is a folder that no other user may enter: in a shared place any user can have made it before us."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & ~_PRIVATE & 0o777


def make_private(path: Path) -> None:
    """Make the folder, and remove the sockets of processes that have died. Raises `OSError` if it is another user's."""
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    if not is_private(path):
        raise PermissionError(f"{path} is not a folder of ours alone")
    for there in path.glob("*.sock"):
        if _is_dead(there):
            there.unlink(missing_ok=True)


def _prefix(role: str, settings: Settings) -> str:
    fleet = "\n".join((settings.redis_url or "", settings.broker or "", settings.key_prefix))
    return f"{hashlib.sha256(fleet.encode()).hexdigest()[:_DIGITS]}-{role}-"


def _ask(path: Path, probe: Probe, ends_at: float) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.settimeout(max(ends_at - machine_clock.monotonic(), 0.001))
            asking.connect(str(path))
            asking.sendall(f"GET {probe} HTTP/1.0\r\n\r\n".encode())
            asking.settimeout(max(ends_at - machine_clock.monotonic(), 0.001))
            return asking.recv(len(_YES)) == _YES
        except OSError:  # it has died, stands still, or has just ended
            return False


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_DEAD_SECONDS)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


_YES = b"HTTP/1.0 200 "
_COMMON = "/tmp"  # noqa: S108 - whose folder ours is, is checked
